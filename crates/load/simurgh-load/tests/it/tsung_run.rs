//! Tsung's clients, servers, load and options: the resulting scenarios, and the error messages.

use std::time::Duration;

use simurgh_load::scenario::{Arrivals, Overrides, Row, check};
use simurgh_load::tsung::read_in;

use crate::support::tsung::{Fake, Parts, lines, only_session, session, wrong};

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}

fn users(text: &str) -> Parts {
    let load =
        format!("<arrivalphase phase=\"1\" duration=\"1\" unit=\"minute\">{text}</arrivalphase>");
    Parts { load, ..Parts::default() }
}

fn options(text: &str) -> Parts {
    Parts { options: text.to_owned(), ..Parts::default() }
}

#[test]
fn minimal_tsung_scenario_is_valid() {
    let loaded = Parts::default().read().unwrap();
    assert_eq!(lines(&loaded.warnings), Vec::<String>::new());
    assert_eq!(check(&loaded.scenario), Ok(()));
    let strict = Overrides { strict: true, ..Overrides::default() };
    let text = Parts::default().text().replace("<options></options>", "");
    assert!(read_in(&text, &strict, &Fake).is_ok());
}

#[test]
fn arrival_rates_are_converted_to_users_per_second() {
    for (text, rate) in [
        ("<users arrivalrate=\"90\" unit=\"minute\"/>", 1.5),
        ("<users arrivalrate=\"0.5\" unit=\"second\"/>", 0.5),
        ("<users interarrival=\"0.2\" unit=\"second\"/>", 5.0),
        ("<users interarrival=\"0.5\" unit=\"hour\"/>", 1.0 / 1800.0),
    ] {
        let loaded = users(text).read().unwrap();
        let phase = &loaded.scenario.load.phases[0];
        assert_eq!(phase.duration, seconds(60.0));
        let Arrivals::Open { from, to, poisson } = phase.arrivals else { panic!("open") };
        assert!((from - rate).abs() < 1e-12 && from == to && poisson, "{text}: {from}");
    }
    let both = "<users arrivalrate=\"1\" interarrival=\"1\" unit=\"second\"/>";
    let wanted =
        "line 6: <users> has both `arrivalrate` and `interarrival` (use exactly one of them)";
    assert_eq!(wrong(&users(both)), [wanted]);
    assert!(wrong(&users("<users unit=\"second\"/>"))[0].contains("has neither"));
    assert!(
        wrong(&users("<users arrivalrate=\"0\" unit=\"second\"/>"))[0].contains("an invalid rate")
    );
    assert!(wrong(&users(""))[0].contains("no users arrive in the phase 1"));
}

#[test]
fn phases_are_sorted_by_their_numbers() {
    let phase = |number: u32, users: &str| {
        format!(
            "<arrivalphase phase=\"{number}\" duration=\"1\" unit=\"hour\" \
             wait_all_sessions_end=\"true\"><users {users} unit=\"second\"/></arrivalphase>"
        )
    };
    let load = phase(7, "arrivalrate=\"7\" maxnumber=\"70\"") + &phase(2, "arrivalrate=\"2\"");
    let loaded = Parts { load: load.clone(), ..Parts::default() }.read().unwrap();
    let names: Vec<&str> = loaded.scenario.load.phases.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["2", "7"]);
    assert_eq!(loaded.scenario.load.phases[1].users_max, Some(70));
    assert!(loaded.scenario.load.phases[0].wait_for_users);
    let twice = Parts { load: load + &phase(7, "arrivalrate=\"1\""), ..Parts::default() };
    let wanted = "line 6: there are two phases with the number 7 (give each a number of its own)";
    assert_eq!(wrong(&twice), [wanted]);
}

#[test]
fn load_loop_and_duration_are_parsed() {
    let text = Parts::default().text();
    let text = text.replace("<load>", "<load loop=\"2\" duration=\"3\" unit=\"minute\">");
    let load = read_in(&text, &Overrides::default(), &Fake).unwrap().scenario.load;
    assert_eq!((load.repeat, load.duration), (2, Some(seconds(180.0))));
}

#[test]
fn users_with_a_start_time_become_appointments() {
    let one = |name: &str, share: u32| {
        format!(
            "<session name=\"{name}\" probability=\"{share}\" type=\"ts_http\">\
             <thinktime value=\"1\"/></session>"
        )
    };
    let sessions = one("foobar", 0) + &one("foo", 100) + &one("bar", 0);
    let load = "<user session=\"foo*\" start_time=\"1.5\" unit=\"minute\"/>\
                <user session=\"bar\" start_time=\"500\" unit=\"millisecond\"/>";
    let parts = Parts { sessions, load: load.to_owned(), ..Parts::default() };
    let load = parts.read().unwrap().scenario.load;
    let found: Vec<_> = load.appointments.iter().map(|a| (a.at, a.session)).collect();
    assert_eq!(found, [(seconds(0.5), 2), (seconds(90.0), 0), (seconds(90.0), 1)]);
    let nobody = Parts { load: "<user session=\"no*\" start_time=\"1\"/>".to_owned(), ..parts };
    assert_eq!(wrong(&nobody), ["line 6: <user>: there is no session `no*`"]);
}

#[test]
fn session_probabilities_and_weights_are_checked() {
    let one = |name: &str, share: &str| {
        format!(
            "<session name=\"{name}\" {share} type=\"ts_http\"><thinktime value=\"1\"/></session>"
        )
    };
    let of = |sessions: String| Parts { sessions, ..Parts::default() };
    let parts = of(one("a", "probability=\"33.3\"") + &one("b", "probability=\"66.7\""));
    assert!(parts.read().is_ok());
    let sum = of(one("a", "probability=\"30\"") + &one("b", "probability=\"60\""));
    let wanted = "line 8: the probabilities of the sessions add up to 90 (they must add up to 100)";
    assert_eq!(wrong(&sum), [wanted]);
    let mixed = of(one("a", "probability=\"30\"") + &one("b", "weight=\"60\""));
    assert!(wrong(&mixed)[0].contains("`weight`, where others have the other"));
    assert!(wrong(&of(one("a", "")))[0].contains("neither `probability` nor `weight`"));
    assert!(wrong(&of(one("a", "probability=\"1\" weight=\"1\"")))[0].contains("has both"));
    assert!(wrong(&of(one("a", "weight=\"0\"")))[0].contains("all sessions have the weight 0"));
    let two = one("ab", "probability=\"50\"") + &one("ac", "probability=\"50\"");
    let setup = |text: &str| {
        let users = "<users arrivalrate=\"1\" unit=\"second\"/>";
        Parts { sessions: two.clone(), ..self::users(&format!("{text}{users}")) }
    };
    let one = "<session_setup name=\"ab\" probability=\"100\"/>";
    let wanted = "line 6: the probabilities of the sessions of this phase add up to 150 (they must \
                  add up to 100)";
    assert_eq!(wrong(&setup(one)), [wanted]);
    let both = format!("<session_setup name=\"a*\" probability=\"0\"/>{one}");
    let load = setup(&both).read().unwrap().scenario.load;
    assert_eq!(load.phases[0].weights, [Some(100.0), Some(0.0)], "the last that fits");
}

/// The sum of each phase counts, not that of the sessions alone.
#[test]
fn sessions_of_probability_0_are_chosen_by_session_setup() {
    let one = |name: &str| {
        format!(
            "<session name=\"{name}\" probability=\"0\" type=\"ts_http\">\
             <thinktime value=\"1\"/></session>"
        )
    };
    let setup = |text: &str| {
        let users = "<users arrivalrate=\"1\" unit=\"second\"/>";
        Parts { sessions: one("a") + &one("b"), ..self::users(&format!("{text}{users}")) }
    };
    let text = "<session_setup name=\"b\" probability=\"100\"/>\
                <session_setup name=\"x\" probability=\"7\"/>";
    let loaded = setup(text).read().unwrap();
    assert_eq!(check(&loaded.scenario), Ok(()));
    assert_eq!(loaded.scenario.load.phases[0].weights, [None, Some(100.0)]);
    let wanted = "line 6: <session_setup>: there is no session `x` (it is ignored, as by Tsung)";
    assert_eq!(lines(&loaded.warnings), [wanted]);
    assert!(wrong(&setup(""))[0].starts_with("line 8: the probabilities of the sessions add up"));
    let user = Parts { load: "<user session=\"a\" start_time=\"1\"/>".to_owned(), ..setup("") };
    assert!(user.read().is_ok(), "no session is drawn");
}

#[test]
fn unknown_options_are_ignored_with_a_warning() {
    let loaded = options("<option name=\"hibernat\" value=\"1\"/>").read().unwrap();
    let wanted = "line 7: the option `hibernat` is not known and is ignored (see the manual of \
                  Tsung, which ignores it too, for the names of options)";
    assert_eq!(lines(&loaded.warnings), [wanted]);
}

#[test]
fn blanks_around_attribute_values_are_removed() {
    let parts = Parts {
        clients: "<client host=\" localhost \" type=\" machine \"/>".to_owned(),
        servers: "<server host=\" 127.0.0.1\n\" port=\" 4000 \" type=\" tcp \"/>".to_owned(),
        ..Parts::default()
    };
    for strict in [false, true] {
        let overrides = Overrides { strict, ..Overrides::default() };
        let text = parts.text().replace("<options></options>", "");
        let loaded = read_in(&text, &overrides, &Fake).unwrap();
        assert_eq!(loaded.scenario.targets[0].host, "127.0.0.1");
    }
}

#[test]
fn rows_of_tsung_files_are_stored_as_bytes() {
    let sessions = session(
        "ts_http",
        "<setdynvars sourcetype=\"file\"><var name=\"a\"/><var name=\"b\"/></setdynvars>",
    );
    let option = "<option name=\"file_server\" value=\"latin1.csv\"/>".to_owned();
    let loaded = Parts { options: option, sessions, ..Parts::default() }.read().unwrap();
    let rows: Vec<&[u8]> = loaded.scenario.files[0].rows.iter().map(Row::as_bytes).collect();
    assert_eq!(rows, [&b"\xef\xbb\xbfan\xe9;1\r"[..], b"bob", b"", b" "]);
    let wanted = [
        "line 7: the file latin1.csv begins with a byte order mark, which is sent (remove it from \
         the file unless it belongs to the values)",
        "line 7: rows of the file latin1.csv end with a carriage return, which is sent (remove it \
         from the file unless it belongs to the values)",
        "line 9: row 2 of the file with the id `default` is short (it has less than 2 fields; the \
         others are empty, as in Tsung)",
    ];
    assert_eq!(lines(&loaded.warnings), wanted);
}

#[test]
fn tsung_options_become_settings_of_the_scenario() {
    let text = "<option name=\"seed\" value=\"9\"/><option name=\"rate_limit\" value=\"2\"/>\
        <option name=\"connect_timeout\" value=\"infinity\"/>\
        <option name=\"idle_timeout\" value=\"7\"/>\
        <option name=\"ports_range\" min=\"2000\"/><option name=\"tcp_snd_buffer\" value=\"5\"/>\
        <option type=\"ts_http\" name=\"user_agent\">\
        <user_agent probability=\"100\">\n A \n</user_agent>\
        </option>";
    let loaded = options(text).read().unwrap();
    let scenario = &loaded.scenario;
    assert_eq!((scenario.seed, only_session(&loaded).read_rate_max), (9, Some(2048)));
    assert!(scenario.timeouts.connect >= Duration::from_secs(86_400));
    assert_eq!(scenario.timeouts.reply, Duration::from_millis(7));
    assert_eq!(scenario.sources.ports, Some((2000, 65_534)));
    assert_eq!(scenario.sources.send_buffer_bytes, Some(5));
    assert_eq!(scenario.user_agents, [("A".to_owned(), 100.0)]);
    assert_eq!((check(scenario), loaded.warnings.len()), (Ok(()), 0));
    let off = options("<option name=\"ports_range\" value=\"off\"/>").read().unwrap();
    assert_eq!(off.scenario.sources.ports, None);
    for (text, wanted) in [
        ("<option name=\"seed\" value=\"x\"/>", "line 7: `value` of <option> cannot be \"x\""),
        ("<option name=\"ports_range\" min=\"9\" max=\"8\"/>", "9 is above 8"),
        ("<option name=\"file_server\" value=\"no.csv\"/>", "cannot read the file no.csv"),
        ("<option name=\"file_server\" value=\"empty.csv\"/>", "the file empty.csv is empty"),
        ("<option type=\"ts_http\" name=\"proxy\" value=\"true\"/>", "not supported"),
        (
            "<option type=\"ts_http\" name=\"user_agent\">\
             <user_agent probability=\"9\">a</user_agent></option>",
            "the user agents add up to 9",
        ),
    ] {
        let found = wrong(&options(text));
        assert!(found.len() == 1 && found[0].contains(wanted), "{text}: {found:?}");
    }
    let same = "<option name=\"file_server\" id=\"a\" value=\"users.csv\"/>";
    assert!(wrong(&options(&same.repeat(2)))[0].contains("two files with the id `a`"));
}

#[test]
fn ignored_tsung_settings_cause_warnings() {
    let parts = Parts {
        clients: "<client host=\"this\" cpu=\"2\"><ip value=\"eth0\" scan=\"true\"/></client>"
            .to_owned(),
        options:
            "<option name=\"hibernate\" value=\"5\"/>\n<option name=\"max_ssh_startup_per_core\" \
                  value=\"1\"/>\n<option type=\"ts_jabber\" name=\"x\" value=\"1\"/>\n\
                  <option name=\"websocket_path\" value=\"/\"/>"
                .to_owned(),
        sessions: session("ts_http", "<set_option name=\"connect_timeout\" value=\"1\"/>")
            .replace("type=", "bidi=\"true\" persistent=\"true\" type="),
        ..Parts::default()
    };
    let text = parts
        .text()
        .replace("<tsung ", "<tsung backend=\"json\" loglevel=\"info\" ")
        .replace("<load>", "<monitoring><monitor host=\"a\" type=\"munin\"/></monitoring>\n<load>");
    let text = text
        .replace("<clients>", "<information><description>d</description></information><clients>");
    let found = lines(&read_in(&text, &Overrides::default(), &Fake).unwrap().warnings);
    for wanted in [
        "line 3: `loglevel` of <tsung>",
        "line 3: `backend` of <tsung>",
        "line 4: <description> is ignored",
        "line 4: `cpu`, `use_controller_vm`, `maxusers` and `weight` of <client> are ignored",
        "line 4: <ip value=\"eth0\" scan=\"true\"> is ignored",
        "line 6: <monitor> of a (type munin) is ignored",
        "line 8: the option `hibernate` is ignored",
        "line 9: the option `max_ssh_startup_per_core` is ignored",
        "line 10: the option `x` of ts_jabber is ignored",
        "line 11: the option `websocket_path` is ignored",
        "line 12: `bidi` of <session> is ignored",
        "line 12: `persistent` of <session> is ignored",
        "line 13: <set_option> `connect_timeout` is ignored",
    ] {
        assert!(found.iter().any(|warning| warning.starts_with(wanted)), "{wanted}: {found:#?}");
    }
    assert_eq!(found.len(), 13);
}

#[test]
fn tsung_clients_become_the_local_host_or_agents() {
    let of = |clients: &str| Parts { clients: clients.to_owned(), ..Parts::default() };
    for local in ["localhost", "127.0.0.1", "THIS", "this.example.org", "10.0.0.2"] {
        assert!(of(&format!("<client host=\"{local}\"/>")).read().is_ok(), "{local}");
    }
    assert!(of("<client host=\"far\" use_controller_vm=\"true\"/>").read().is_ok());
    for other in ["far", "unknown"] {
        let found = wrong(&of(&format!("<client host=\"{other}\"/>")));
        assert!(found[0].starts_with(&format!("line 4: the client {other} is another host")));
    }
    assert!(wrong(&of("<client type=\"batch\" batch=\"pbs\"/>"))[0].contains("of type batch"));
    assert!(wrong(&of(""))[0].starts_with("line 4: there is no <client>"), "{:?}", wrong(&of("")));
    let ranges = |overrides: &Overrides, clients: &str| {
        let loaded = read_in(&of(clients).text(), overrides, &Fake).unwrap();
        let ranges = loaded.scenario.sources.addresses.iter();
        let ranges: Vec<String> = ranges.map(|r| format!("{}-{}", r.first, r.last)).collect();
        (ranges, lines(&loaded.warnings))
    };
    let local = Overrides { local: true, ..Overrides::default() };
    let clients = "<client host=\"far\"><iprange value=\"10.0.0.1-3\"/></client>\
                   <client host=\"far\"><ip value=\"127.0.0.9\"/><ip value=\"resolve\"/></client>";
    let (kept, warnings) = ranges(&local, clients);
    assert_eq!(kept, ["10.0.0.2-10.0.0.2", "127.0.0.9-127.0.0.9"]);
    assert!(
        warnings.iter().any(|w| w.contains("10.0.0.1 to 10.0.0.3: addresses that this host does"))
    );
    assert!(warnings.iter().any(|w| w.contains("192.0.2.1 to 192.0.2.1: addresses that")));
    let clients = "<client host=\"localhost\"><iprange value=\"10.0.0-1.1-3\"/></client>";
    let (kept, _) = ranges(&Overrides::default(), clients);
    assert_eq!(kept, ["10.0.0.1-10.0.0.3", "10.0.1.1-10.0.1.3"]);
    let bad = "<client host=\"localhost\"><iprange value=\"10.0.0\"/></client>";
    assert!(wrong(&of(bad))[0].contains("<iprange> cannot be \"10.0.0\""));
    let no_clients = Parts { clients: String::new(), ..Parts::default() };
    assert!(read_in(&no_clients.text(), &local, &Fake).is_ok());
}

#[test]
fn tsung_server_needs_a_host_a_port_and_a_type() {
    let of = |servers: &str| Parts { servers: servers.to_owned(), ..Parts::default() };
    for (kind, address, tls) in [
        ("tcp", "127.0.0.1:1", false),
        ("tcp6", "[::1]:1", false),
        ("ssl", "127.0.0.1:1", true),
        ("ssl6", "[::1]:1", true),
    ] {
        let server =
            format!("<server host=\"localhost\" port=\"1\" type=\"{kind}\" weight=\"0.5\"/>");
        let scenario = of(&server).read().unwrap().scenario;
        let target = &scenario.targets[0];
        assert_eq!((target.address.to_string(), target.tls), (address.to_owned(), tls), "{kind}");
        assert_eq!((target.host.as_str(), target.weight), ("localhost", 0.5));
    }
    for (server, wanted) in [
        ("", "line 5: there is no <server>"),
        ("<server port=\"1\" type=\"tcp\"/>", "line 5: <server> lacks its attribute `host`"),
        (
            "<server host=\"\" port=\"1\" type=\"tcp\"/>",
            "line 5: <server> needs a value for `host`",
        ),
        ("<server host=\"a\" port=\"1\"/>", "line 5: <server> lacks its attribute `type`"),
        (
            "<server host=\"127.0.0.1\" port=\"0\" type=\"tcp\"/>",
            "`port` of <server> cannot be \"0\"",
        ),
        (
            "<server host=\"127.0.0.1\" port=\"1\" type=\"udp\"/>",
            "has the type udp, which cannot be",
        ),
        (
            "<server host=\"127.0.0.1\" port=\"1\" type=\"sctp\"/>",
            "`type` of <server> cannot be \"sctp\"",
        ),
        (
            "<server host=\"127.0.0.1\" port=\"1\" type=\"tcp\" weight=\"0\"/>",
            "all servers have the w",
        ),
    ] {
        let found = wrong(&of(server));
        assert!(found.len() == 1 && found[0].contains(wanted), "{server}: {found:?}");
    }
    let raw = of("<server host=\"127.0.0.1\" port=\"1\" type=\"websocket\"/>");
    assert!(wrong(&raw)[0].contains("servers of type websocket take only ts_websocket"));
}
