//! Whole populations in virtual time: each request leaves exactly when its scenario says.

use std::collections::VecDeque;

use proptest::prelude::*;
use simurgh_load_scenario::Arrivals as Model;

use super::*;
use crate::arrivals::Arrivals;
use crate::schedule::Share;

/// A step, with times in µs.
#[derive(Clone, Copy, Debug)]
enum Do {
    Think(u64),
    /// A message that is answered after this time.
    Ask(u64),
    /// The same; this time after the answer something comes that the user waits for, after it has
    /// thought.
    AskAndWait(u64, u64, u64),
}

fn step() -> impl Strategy<Value = Do> {
    let time = 0..30_000_u64;
    prop_oneof![
        (1..30_000_u64).prop_map(Do::Think),
        time.clone().prop_map(Do::Ask),
        (time.clone(), time.clone(), 1..30_000_u64)
            .prop_map(|(answer, push, think)| Do::AskAndWait(answer, push, think)),
    ]
}

fn text(steps: &[Do], rounds: usize, every: Option<u64>) -> String {
    let ask = "{ send = \"ask\", reply = { contains = \"ok\" } }";
    let steps: String = steps
        .iter()
        .map(|step| match step {
            Do::Think(us) => format!("{{ think = \"{us}us\" }}, "),
            Do::Ask(_) => format!("{ask}, "),
            Do::AskAndWait(_, _, think) => {
                format!(
                    "{ask}, {{ think = \"{think}us\" }}, {{ wait = {{ contains = \"go\" }} }}, "
                )
            }
        })
        .collect();
    let every = every.map_or_else(String::new, |us| format!("every = \"{us}us\", "));
    let whole = format!("{{ loop = {rounds}, {every}steps = [{steps}] }}");
    format!("steps = [{{ connect = \"/\" }}, {whole}, {ask}]")
}

/// When a user that connects at `at_ns` asks, and when it leaves: computed from the steps alone.
fn intended(steps: &[Do], rounds: usize, every: Option<u64>, mut at_ns: u64) -> (Vec<u64>, u64) {
    let (start_us, mut due_us, mut asks) = (at_ns / 1_000, at_ns / 1_000, Vec::new());
    let numbered = (0..rounds * steps.len()).zip(steps.iter().cycle().copied());
    for (number, step) in numbered.map(|(number, step)| (Some(number), step)).chain([LAST]) {
        let round = number.filter(|number| number % steps.len() == 0 && *number > 0);
        if let (Some(number), Some(every_us)) = (round, every) {
            due_us = start_us + (number / steps.len()) as u64 * every_us;
            at_ns = at_ns.max(tick_ns(tick_nearest(due_us * 1_000)));
        }
        if let Do::Ask(answer_us) | Do::AskAndWait(answer_us, ..) = step {
            asks.push(at_ns);
            at_ns += answer_us * 1_000;
            due_us = at_ns / 1_000;
        }
        let push_ns = match step {
            Do::AskAndWait(_, push_us, _) => at_ns + push_us * 1_000,
            _ => 0,
        };
        if let Do::Think(us) | Do::AskAndWait(.., us) = step {
            due_us += us;
            // A timer keeps whole ticks; what follows counts from the exact time.
            at_ns = at_ns.max(tick_ns(tick_nearest(due_us * 1_000)));
        }
        if push_ns > at_ns {
            (at_ns, due_us) = (push_ns, push_ns / 1_000);
        }
    }
    (asks, at_ns)
}

/// The answer to the last request, in µs.
const LAST_US: u64 = 700;
const LAST: (Option<usize>, Do) = (None, Do::Ask(LAST_US));

/// More than a round takes.
fn longest(steps: &[Do]) -> u64 {
    let one = |step: &Do| match step {
        Do::Think(us) | Do::Ask(us) => *us,
        Do::AskAndWait(answer, push, think) => answer + push.max(think),
    };
    steps.iter().map(one).sum::<u64>() + 2_000
}

/// A user, and the texts that the server owes it.
struct Member {
    driven: Driven,
    began_ns: u64,
    steps: VecDeque<Do>,
    owed: VecDeque<(u64, &'static str)>,
    asked_ns: Vec<u64>,
}

impl Member {
    fn begin(scenario: &Arc<Scenario>, began_ns: u64, steps: &[Do], rounds: usize) -> Self {
        let steps = (0..rounds).flat_map(|_| steps).copied().chain([Do::Ask(LAST_US)]).collect();
        let mut driven = Driven::of(scenario, began_ns);
        driven.upgrade();
        let mut member = Self { driven, began_ns, steps, owed: [].into(), asked_ns: Vec::new() };
        member.answer();
        member
    }

    /// The server answers each request after its time.
    fn answer(&mut self) {
        let now_ns = self.driven.log.now_ns;
        for _ in self.driven.frames() {
            self.asked_ns.push(now_ns);
            loop {
                match self.steps.pop_front() {
                    Some(Do::Think(_)) => {}
                    Some(Do::Ask(us)) => break self.owed.push_back((now_ns + us * 1_000, "ok")),
                    Some(Do::AskAndWait(us, push_us, _)) => {
                        let answer_ns = now_ns + us * 1_000;
                        self.owed.push_back((answer_ns, "ok"));
                        break self.owed.push_back((answer_ns + push_us * 1_000, "go"));
                    }
                    None => panic!("a request too many"),
                }
            }
        }
    }

    fn next_ns(&self) -> u64 {
        let timer_ns = self.driven.log.timer_tick.map(tick_ns);
        let owed_ns = self.owed.front().map(|(at_ns, _)| *at_ns);
        [timer_ns, owed_ns].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// What is due for it happens.
    fn go_on(&mut self, now_ns: u64) {
        self.driven.log.now_ns = now_ns;
        match self.owed.front().copied().filter(|(at_ns, _)| *at_ns == now_ns) {
            Some((_, text)) => {
                self.owed.pop_front();
                self.driven.text(text);
            }
            None => drop(self.driven.timer()),
        }
        self.answer();
    }

    fn has_left(&self) -> bool {
        self.driven.user.state == UserState::Left
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn requests_leave_at_their_step_times_in_open_and_closed_models(
        steps in prop::collection::vec(step(), 1..6),
        rounds in 1..4_usize,
        users in 1..8_u64,
        model in prop_oneof![(1..200_u64).prop_map(Ok), (1..5_u64).prop_map(Err)],
        pause in prop::option::of(0..20_000_u64),
        start_ns in 1_000_000_000..1_001_000_000_u64,
    ) {
        let every = pause.map(|pause| longest(&steps) + pause);
        let scenario = Driven::scenario("ws://127.0.0.1:1", RAW, "", &text(&steps, rounds, every));
        let mut scenario = Arc::unwrap_or_clone(scenario);
        let phase = &mut scenario.load.phases[0];
        (phase.duration, phase.users_max) = (Duration::from_secs(1_000), Some(users));
        phase.arrivals = match model {
            Ok(rate) => Model::Open { from: rate as f64, to: rate as f64, poisson: false },
            Err(at_a_time) => Model::Closed { from: at_a_time, to: at_a_time },
        };
        let scenario = Arc::new(scenario);
        let mut queue = Arrivals::new(&scenario, Share { index: 0, of: 1 });
        queue.start(start_ns);
        let (mut members, mut left, mut now_ns) = (Vec::<Member>::new(), Vec::new(), start_ns);
        while (left.len() as u64) < users {
            while let Some(started) = queue.next(now_ns, members.len() as u64) {
                members.push(Member::begin(&scenario, started.at_ns, &steps, rounds));
            }
            let next_ns = members.iter().map(Member::next_ns).min().unwrap_or(u64::MAX);
            let arrival_ns = queue.next_ns().filter(|at_ns| *at_ns > now_ns);
            // A timer may be due in the millisecond that has begun.
            now_ns = next_ns.min(arrival_ns.unwrap_or(u64::MAX)).max(now_ns);
            prop_assert!(now_ns < u64::MAX, "nothing happens any more");
            for member in members.iter_mut().filter(|member| member.next_ns() <= now_ns) {
                member.go_on(now_ns);
            }
            left.extend(members.extract_if(.., |member| member.has_left()).map(|it| (now_ns, it)));
        }
        // Open: at a fixed distance. Closed: at once, and then when another one leaves.
        let mut begins: Vec<u64> = match model {
            Ok(rate) => (0..users).map(|at| start_ns + at * 1_000_000_000 / rate).collect(),
            Err(at_a_time) => {
                let ends = left.iter().map(|(end_ns, _)| *end_ns);
                let at_once = std::iter::repeat_n(start_ns, at_a_time.min(users) as usize);
                at_once.chain(ends).take(users as usize).collect()
            }
        };
        begins.sort_unstable();
        left.sort_by_key(|(_, member)| member.began_ns);
        for (begin_ns, (end_ns, member)) in begins.into_iter().zip(left) {
            let began_ns = member.began_ns;
            prop_assert!(began_ns.abs_diff(begin_ns) <= 2_000, "{began_ns}, not {begin_ns}");
            let (asks, end) = intended(&steps, rounds, every, began_ns);
            prop_assert_eq!((member.asked_ns, end_ns), (asks, end));
            prop_assert_eq!(member.driven.log.errors, []);
        }
    }
}
