//! `<load>`: when users arrive.

use simurgh_load_scenario::{Appointment, Arrivals, Diagnostic, Load, Phase, Session};

use super::{Lower, fits, unit_seconds};
use crate::xml::Element;

/// Maximum of users with an appointment; with wildcards a short file could request any number.
const APPOINTMENTS_MAX: usize = 1 << 20;

impl Lower<'_> {
    pub(super) fn load(&mut self, root: &Element, sessions: &[Session]) -> Load {
        let mut load = Load::default();
        let mut phases: Vec<(u64, Phase)> = Vec::new();
        let mut line = root.line;
        for element in root.children_named("load") {
            line = element.line;
            load.repeat = self.whole_u32(element, "loop").unwrap_or_default();
            let duration = self.number(element, "duration").filter(|&duration| duration > 0.0);
            let unit = unit_seconds(element.value("unit"));
            load.duration = duration.map(|count| self.seconds(element, "duration", count, unit));
            for child in element.children() {
                if child.name == "user" {
                    self.user(child, sessions, &mut load.appointments);
                } else if let Some(phase) = self.phase(child, sessions) {
                    if phases.iter().any(|(number, _)| *number == phase.0) {
                        let what = format!("there are two phases with the number {}", phase.0);
                        self.wrong(child.line_of("phase"), what, "give each a number of its own");
                    }
                    phases.push(phase);
                }
            }
        }
        phases.sort_by_key(|(number, _)| *number);
        load.phases = phases.into_iter().map(|(_, phase)| phase).collect();
        load.appointments.sort_by_key(|appointment| appointment.at);
        if load.phases.is_empty() && load.appointments.is_empty() && self.diagnostics.is_empty() {
            self.wrong(line, "no users arrive", "put an <arrivalphase> or a <user> into <load>");
        }
        load
    }

    fn user(&mut self, user: &Element, sessions: &[Session], out: &mut Vec<Appointment>) {
        let pattern = self.wanted(user, "session").to_owned();
        let count = self.number(user, "start_time").unwrap_or_default();
        let at = self.seconds(user, "start_time", count, unit_seconds(user.value("unit")));
        let before = out.len();
        if before > APPOINTMENTS_MAX {
            let what = format!("<user> makes more than {APPOINTMENTS_MAX} users");
            return self.wrong(user.line, what, "let users arrive in an <arrivalphase>");
        }
        let fits = fits(&pattern);
        for (session, _) in sessions.iter().enumerate().filter(|(_, s)| fits(&s.name)) {
            out.push(Appointment { at, session });
        }
        // Invalid sessions are not in the list.
        if out.len() == before && self.diagnostics.is_empty() {
            let what = format!("<user>: there is no session `{pattern}`");
            self.wrong(user.line_of("session"), what, "");
        }
    }

    fn phase(&mut self, element: &Element, sessions: &[Session]) -> Option<(u64, Phase)> {
        let number = self.whole::<u64>(element, "phase", 0..=u64::MAX)?;
        let count = self.number(element, "duration")?;
        let unit = self.unit(element);
        let duration = self.seconds(element, "duration", count, unit);
        if duration.is_zero() {
            let what = format!("the phase {number} has no duration");
            self.wrong(element.line_of("duration"), what, "it must be above 0");
        }
        let wait = element.value("wait_all_sessions_end").unwrap_or("false");
        if !matches!(wait, "true" | "false") {
            let what = format!("`wait_all_sessions_end` of <arrivalphase> cannot be \"{wait}\"");
            self.wrong(element.line_of("wait_all_sessions_end"), what, "one of: true, false");
        }
        let all: Vec<&Element> = element.children_named("users").collect();
        let Some(users) = all.last() else {
            let help = "put <users arrivalrate=\"10\" unit=\"second\"/> into it";
            let what = format!("no users arrive in the phase {number}");
            return self.refuse(element.line, what, help);
        };
        if all.len() > 1 {
            let what = format!("the phase {number} has several <users>");
            self.warn(users.line, what, "the last one counts, as in Tsung");
        }
        let arrivals = self.arrivals(users)?;
        let phase = Phase {
            name: number.to_string(),
            duration,
            arrivals,
            users_max: self.whole(users, "maxnumber", 1..=u64::MAX),
            wait_for_users: wait == "true",
            hold: false,
            weights: self.weights(element, sessions),
        };
        Some((number, phase))
    }

    /// Seconds of the unit; the default is seconds, which Tsung does not allow.
    fn unit(&mut self, element: &Element) -> f64 {
        if element.attribute("unit").is_none() {
            let what = format!("<{}> lacks its attribute `unit`", element.name);
            let diagnostic = Diagnostic::at(element.line, what);
            self.warnings.push(diagnostic.help("seconds are taken; Tsung refuses it"));
        }
        unit_seconds(element.value("unit"))
    }

    fn arrivals(&mut self, users: &Element) -> Option<Arrivals> {
        let unit = self.unit(users);
        let rate = match (users.attribute("arrivalrate"), users.attribute("interarrival")) {
            (Some(_), None) => self.number(users, "arrivalrate")? / unit,
            (None, Some(_)) => 1.0 / (self.number(users, "interarrival")? * unit),
            _ => return self.one_of(users, "arrivalrate", "interarrival"),
        };
        if rate <= 0.0 || !rate.is_finite() {
            let what = "<users> has an invalid rate";
            return self.refuse(users.line, what, "it must be above 0");
        }
        Some(Arrivals::Open { from: rate, to: rate, poisson: true })
    }

    fn weights(&mut self, phase: &Element, sessions: &[Session]) -> Vec<Option<f64>> {
        let mut weights = Vec::new();
        let (mut line, mut of) = (self.session.line, "");
        for setup in phase.children_named("session_setup") {
            (line, of) = (setup.line, "of this phase ");
            let pattern = self.wanted(setup, "name").to_owned();
            let Some(weight) = self.share(setup) else { continue };
            weights.resize(sessions.len(), None);
            let (fits, mut found) = (fits(&pattern), false);
            for (slot, session) in weights.iter_mut().zip(sessions) {
                if fits(&session.name) {
                    found = true;
                    // The last one that fits counts, as in Tsung.
                    *slot = Some(weight);
                }
            }
            if !found {
                let what = format!("<session_setup>: there is no session `{pattern}`");
                self.warn(setup.line_of("name"), what, "it is ignored, as by Tsung");
            }
        }
        if self.diagnostics.is_empty() {
            let own = |at: usize| weights.get(at).copied().flatten();
            let shares = sessions.iter().enumerate().map(|(at, s)| own(at).unwrap_or(s.weight));
            self.check_shares(shares.sum(), line, of);
        }
        weights
    }
}
