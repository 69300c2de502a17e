//! Tsung's sessions: the resulting steps, and the error messages.

use std::time::Duration;

use simurgh_load::scenario::{
    Act, Action, Bound, Compare, Find, For, Generated, Http, Matcher, Message, Overrides, Part,
    Reply, Switch, Template, Think, Value, VarId, check,
};
use simurgh_load::tsung::read_in;

use crate::support::tsung::{Fake, Parts, only_session, steps, with_steps, wrong, wrong_steps};

fn literal(text: &str) -> Template {
    Template { parts: vec![Part::Literal(text.as_bytes().to_vec())] }
}

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}

#[test]
fn tsung_think_times_are_converted() {
    let think = |options: &str, text: &str| {
        let parts = Parts { options: options.to_owned(), ..with_steps("ts_http", text) };
        let loaded = parts.read().unwrap();
        match only_session(&loaded).steps.last().unwrap().act.clone() {
            Act::Think(think) => think,
            act => panic!("{text}: {act:?}"),
        }
    };
    let one = |text: &str| think("", text);
    assert_eq!(one("<thinktime value=\"0.25\"/>"), Think::Constant(seconds(0.25)));
    assert_eq!(one("<thinktime/>"), Think::Constant(seconds(5.0)));
    assert_eq!(one("<thinktime value=\"2\" random=\"true\"/>"), Think::Exponential(seconds(2.0)));
    let uniform = Think::Uniform(seconds(1.0), seconds(2.0));
    assert_eq!(one("<thinktime min=\"1\" max=\"2\" random=\"true\"/>"), uniform);
    let random = "<option name=\"thinktime\" value=\"3\" random=\"true\" override=\"false\"/>";
    assert_eq!(think(random, "<thinktime value=\"2\"/>"), Think::Exponential(seconds(2.0)));
    assert_eq!(think(random, "<thinktime/>"), Think::Exponential(seconds(3.0)));
    let fixed = "<thinktime value=\"2\" random=\"false\"/>";
    assert_eq!(think(random, fixed), Think::Constant(seconds(2.0)));
    let over = "<option name=\"thinktime\" value=\"3\" override=\"true\"/>";
    assert_eq!(think(over, "<thinktime min=\"7\" max=\"8\"/>"), Think::Constant(seconds(3.0)));
    let range = "<option name=\"thinktime\" min=\"1\" max=\"2\"/>";
    assert_eq!(think(range, "<thinktime/>"), uniform);
    let set = "<setdynvars sourcetype=\"value\" value=\"2\"><var name=\"t\"/></setdynvars>";
    let var = format!("{set}<thinktime value=\"%%_t%%\"/>");
    assert_eq!(one(&var), Think::Var(VarId(0), false));
    let made = format!("{set}<thinktime value=\"1%%_t%%\"/>");
    assert_eq!(one(&made), Think::Var(VarId(1), false), "set to `1%%_t%%` before");
    assert!(wrong_steps("ts_http", "<thinktime value=\"soon\"/>")[0].contains("is not a number"));
    assert!(wrong_steps("ts_http", "<thinktime min=\"3\" max=\"2\"/>")[0].contains("is greater"));
    assert!(wrong_steps("ts_http", "<thinktime value=\"1e9\"/>")[0].contains("too long"));
}

#[test]
fn tsung_waits_become_wait_and_gather_steps() {
    let text = "<thinktime value=\"wait_bidi\"/><thinktime value=\"wait_global\"/>";
    let parts = Parts {
        options: "<option name=\"global_number\" value=\"7\"/>\
                  <option name=\"global_ack_timeout\" value=\"1500\"/>"
            .to_owned(),
        ..with_steps("ts_http", text)
    };
    let loaded = parts.read().unwrap();
    let acts: Vec<&Act> = only_session(&loaded).steps.iter().map(|step| &step.act).collect();
    let gather = Act::Gather { users: 7, timeout: Some(seconds(1.5)) };
    assert_eq!(acts, [&Act::WaitServer, &gather]);
}

#[test]
fn tsung_loops_are_converted() {
    let body = "<thinktime value=\"1\"/>";
    let one = |text: &str| {
        let (scenario, steps, warnings) = steps("ts_http", text);
        assert_eq!(check(&scenario), Ok(()), "{text}");
        (steps.last().unwrap().act.clone(), warnings)
    };
    let text = format!("<for var=\"i\" from=\"2\" to=\"8\" incr=\"3\">{body}</for>");
    let (Act::For(For { var, from, to, step, every, at_least_once, steps }), _) = one(&text) else {
        panic!("a for")
    };
    assert_eq!((var, from, to, step), (Some(VarId(0)), Bound::Number(2), Bound::Number(8), 3));
    assert_eq!((every, at_least_once, steps.len()), (None, true, 1));
    let set = "<setdynvars sourcetype=\"random_number\" start=\"1\" end=\"9\"><var name=\"n\"/>\
               </setdynvars>";
    let text = format!("{set}<for var=\"i\" from=\"1\" to=\"%%_n%%\">{body}</for>");
    let (Act::For(found), warnings) = one(&text) else { panic!("a for") };
    assert_eq!((found.to, warnings.len()), (Bound::Var(VarId(0)), 0));
    let text = format!("{set}<foreach name=\"x\" in=\"n\" include=\"^a\">{body}</foreach>");
    let (Act::ForEach(found), _) = one(&text) else { panic!("a foreach") };
    assert_eq!((found.var, found.list), (VarId(1), VarId(0)));
    assert_eq!((found.include.as_deref(), found.exclude), (Some("^a"), None));
    let text = format!("{set}<repeat name=\"r\">{body}<while var=\"n\" lte=\"5\"/></repeat>");
    let (Act::Repeat(found), _) = one(&text) else { panic!("a repeat") };
    assert_eq!((found.times_max, found.until, found.condition.compare), (20, false, Compare::Lte));
    for (text, wanted) in [
        (
            format!("<for var=\"i\" from=\"a\" to=\"2\">{body}</for>"),
            "`from` of <for> cannot be \"a\"",
        ),
        (format!("<for var=\"i\" from=\"1\" to=\"2\" incr=\"0\">{body}</for>"), "is not a step"),
        (format!("<repeat name=\"r\">{body}</repeat>"), "does not end with one <while> or <until>"),
        (format!("<repeat name=\"r\"><until var=\"n\" eq=\"1\"/>{body}</repeat>"), "does not end"),
        (format!("<if var=\"n\">{body}</if>"), "<if> compares with nothing"),
        (format!("<if var=\"n\" eq=\"1\" gt=\"0\">{body}</if>"), "compares with several"),
        (
            format!("<if var=\"n\" eq=\"1\"><until var=\"n\" eq=\"1\"/>{body}</if>"),
            "is not allowed in",
        ),
        (format!("<if var=\"%%_n%%\" eq=\"1\">{body}</if>"), "is not the name of a variable"),
        (format!("<if var=\"n[0]\" eq=\"1\">{body}</if>"), "elements are counted from 1"),
        (format!("<foreach name=\"x\" in=\"n\" include=\"(\">{body}</foreach>"), "`include` of"),
    ] {
        let found = wrong_steps("ts_http", &text);
        assert!(found.len() == 1 && found[0].contains(wanted), "{text}: {found:?}");
        assert!(found[0].starts_with("line 9: "), "{found:?}");
    }
}

#[test]
fn tsung_conditions_number_elements_from_one() {
    let text = "<request><dyn_variable name=\"v\" re=\"(.)\"/><http url=\"/\"/></request>\
                <if var=\"v[1]\" eq=\"%%_v[2]%%\"><abort type=\"all\"/></if>";
    let (_, steps, warnings) = steps("ts_http", text);
    let Act::If { condition, steps } = &steps[1].act else { panic!("an if") };
    assert_eq!((condition.var, condition.element), (VarId(0), Some(0)));
    assert_eq!(condition.value.parts, [Part::Element(VarId(0), 1)]);
    assert_eq!((&steps[0].act, warnings.len()), (&Act::AbortRun, 0));
}

/// A session whose file server without a name has users.
fn with_users(text: &str) -> Parts {
    let option = "<option name=\"file_server\" value=\"users.csv\"/>";
    Parts { options: option.to_owned(), ..with_steps("ts_http", text) }
}

fn values(text: &str) -> Vec<Value> {
    let read = with_users(text).read();
    let loaded = read.unwrap_or_else(|faults| panic!("{text}: {faults}"));
    let values = only_session(&loaded).steps.iter().map(|step| match &step.act {
        Act::Set(set) => set.value.clone(),
        act => panic!("{act:?}"),
    });
    values.collect()
}

/// `<setdynvars>` of the variable `v`.
fn set(source: &str) -> String {
    format!("<setdynvars {source}><var name=\"v\"/></setdynvars>")
}

#[test]
fn tsung_variables_are_converted() {
    let made = |part: Generated| Value::Template(Template { parts: vec![Part::Value(part)] });
    let user_id = Template { parts: vec![Part::Value(Generated::UserId)] };
    for (source, wanted) in [
        ("random_number\"", made(Generated::RandomNumber(1, 10))),
        ("random_number\" start=\"-3\" end=\"4\"", made(Generated::RandomNumber(-3, 4))),
        ("random_string\"", made(Generated::RandomString(20))),
        ("urandom_string\" length=\"3\"", made(Generated::RandomString(3))),
        ("server\"", Value::Target),
        ("value\" value=\"%x\"", Value::Template(literal("%x"))),
        (
            "file\" fileid=\"default\" order=\"random\"",
            Value::Row { file: 0, delimiter: ";".to_owned(), random: true },
        ),
        (
            "erlang\" callback=\"ts_user_server:get_really_unique_id\"",
            made(Generated::ReallyUniqueId),
        ),
        ("erlang\" callback=\"ts_file_server:get_next_line\"", made(Generated::NextLine(0))),
        (
            "eval\" code=\"fun({P,D})-> {ok,V}=ts_dynvars:lookup(tsung_userid,D), \
             ts_digest:md5hex(V) end.\"",
            made(Generated::Md5(Box::new(user_id))),
        ),
    ] {
        assert_eq!(values(&set(&format!("sourcetype=\"{source}"))), [wanted], "{source}");
    }
}

#[test]
fn several_tsung_variables_each_get_a_value() {
    let two = "<setdynvars sourcetype=\"random_number\"><var name=\"a\"/><var name=\"b\"/>\
               </setdynvars>";
    assert_eq!(values(two).len(), 2, "each its own");
    let json = set("sourcetype=\"value\" value=\"{}\"")
        + "<setdynvars sourcetype=\"jsonpath\" from=\"v\" jsonpath=\"a.b\">\
           <var name=\"w\"/></setdynvars>";
    let (scenario, steps, _) = steps("ts_http", &json);
    let Act::Set(set_json) = &steps[1].act else { panic!("a set") };
    let name = |id: VarId| scenario.vars[usize::from(id.0)].as_str();
    let Value::Json { from, path } = &set_json.value else { panic!("{set_json:?}") };
    assert_eq!((name(*from), path.as_str(), name(set_json.vars[0])), ("v", "a.b", "w"));
}

#[test]
fn invalid_tsung_variables_are_refused() {
    for (source, wanted) in [
        ("erlang\" callback=\"symbol:new\"", "the function `symbol:new` is not known"),
        ("eval\" code=\"fun(X) -> os:cmd(X) end.\"", "the code of <setdynvars> is not"),
        ("file\" fileid=\"x\"", "there is no file with the id `x`"),
        ("random_number\" start=\"5\" end=\"4\"", "5 is above 4"),
        ("random_number\" start=\"x\"", "is not a whole number"),
        ("jsonpath\" jsonpath=\"a\"", "needs a value for `from`"),
    ] {
        let found = wrong(&with_users(&set(&format!("sourcetype=\"{source}"))));
        assert!(found.len() == 1 && found[0].contains(wanted), "{source}: {found:?}");
        assert!(found[0].starts_with("line 9: "), "{found:?}");
    }
    let none = with_users("<setdynvars sourcetype=\"server\"/>");
    assert!(wrong(&none)[0].contains("sets no variable"));
}

#[test]
fn tsung_user_id_is_a_variable() {
    let text = "<if var=\"tsung_userid\" eq=\"3\"><abort/></if>";
    let (scenario, steps, warnings) = steps("ts_http", text);
    assert_eq!((scenario.vars.as_slice(), warnings.len()), (&["tsung_userid".to_owned()][..], 0));
    let Act::Set(set) = &steps[0].act else { panic!("set before it is used") };
    assert_eq!(
        set.value,
        Value::Template(Template { parts: vec![Part::Value(Generated::UserId)] })
    );
}

#[test]
fn variables_that_are_never_set_cause_a_warning() {
    let text = "<request subst=\"true\"><http url=\"/%%_x%%/%%_x%%\"/></request>";
    let (_, _, warnings) = steps("ts_http", text);
    let wanted = "line 9: the variable `x` is never set (`undefined` is sent in its place, as by \
                  Tsung)";
    assert_eq!(warnings, [wanted]);
    let counter = "<repeat name=\"r\"><request subst=\"true\"><dyn_variable name=\"v\" re=\"(a)\"/>\
                   <http url=\"/%%_r%%\"/></request><until var=\"v\" eq=\"a\"/></repeat>";
    let found = wrong_steps("ts_http", counter);
    assert!(found[0].contains("`r` is the counter of a <repeat>"), "{found:?}");
}

#[test]
fn substitutions_depend_on_the_subst_attribute() {
    let path = |subst: &str, url: &str| {
        let text = format!("<request subst=\"{subst}\"><http url=\"{url}\"/></request>");
        let (_, steps, warnings) = steps("ts_http", &text);
        let Act::Http(http) = steps[0].act.clone() else { panic!("http") };
        (http.url.parts, warnings)
    };
    let id = Part::Value(Generated::UserId);
    assert_eq!(path("true", "%%ts_user_server:get_unique_id%%").0, std::slice::from_ref(&id));
    assert_eq!(path("all_except_body", "%%_tsung_userid%%").0, [id]);
    let (parts, warnings) = path("false", "/%%_x%%");
    assert_eq!(parts, literal("/%%_x%%").parts);
    assert!(warnings[0].contains("is sent unchanged (give the request subst"), "{warnings:?}");
    let (parts, warnings) = path("true", "/100%%/rest");
    assert_eq!(parts, literal("/100%%/rest").parts, "nothing is swallowed");
    assert!(warnings[0].contains("begins neither a variable nor a function"), "{warnings:?}");
    for (call, wanted) in [
        ("symbol:new", "the function `symbol:new` is not known"),
        ("ts_digest:md5hex", "`ts_digest:md5hex` needs a value"),
        ("ts_file_server:get_next_line", "reads the file without an `id`, and there is none"),
    ] {
        let text = format!("<request subst=\"true\"><http url=\"/%%{call}%%\"/></request>");
        let found = wrong_steps("ts_http", &text);
        assert!(found.len() == 1 && found[0].contains(wanted), "{call}: {found:?}");
    }
}

#[test]
fn tsung_captures_and_checks_are_converted() {
    let text = "<request>\
        <match do=\"loop\" when=\"nomatch\" name=\"n\" max_loop=\"2\" sleep_loop=\"1\" \
         loop_back=\"1\">\
        \n a+ \n</match>\
        <match do=\"restart\" max_restart=\"4\">b</match><match do=\"abort_test\">c</match>\
        <match do=\"abort\" skip_headers=\"http\">d</match><match>e</match>\
        <match do=\"dump\" subst=\"true\">%%_tsung_userid%%</match>\
        <dyn_variable name=\"r\" re=\"(a)\" decode=\"html_entities\"/>\
        <dyn_variable name=\"j\" jsonpath=\"a.b[0]\"/>\
        <dyn_variable name=\"h\" header=\"set-cookie/id\"/><dyn_variable name=\"form\"/>\
        <http url=\"/\"/></request>";
    let (scenario, steps, warnings) = steps("ts_http", text);
    assert_eq!((check(&scenario), warnings.len()), (Ok(()), 0));
    let Act::Http(http) = &steps[0].act else { panic!("http") };
    let checks = &http.answer.checks;
    assert_eq!((checks[0].name.as_str(), &checks[0].pattern), ("n", &literal("a+")));
    assert!(!checks[0].when_found && checks[3].skip_headers && !checks[4].skip_headers);
    let actions: Vec<Action> = checks.iter().map(|check| check.action).collect();
    let wanted = [
        Action::Loop { times_max: 2, sleep: seconds(1.0), back: 1 },
        Action::Restart { times_max: 4 },
        Action::AbortRun,
        Action::Abort,
        Action::Continue,
        Action::Dump,
    ];
    assert_eq!(actions, wanted);
    assert_eq!(checks[5].pattern.parts, [Part::Value(Generated::UserId)]);
    let from: Vec<&Find> = http.answer.captures.iter().map(|capture| &capture.from).collect();
    let text = |text: &str| text.to_owned();
    let wanted = [
        &Find::Regex(text("(a)")),
        &Find::Json(text("a.b[0]")),
        &Find::Header(text("set-cookie/id")),
        &Find::FormField(text("form")),
    ];
    assert_eq!(from, wanted);
    assert!(http.answer.captures[0].decode_html);
    for (inner, wanted) in [
        ("<match>(</match>", "<match>: '(' is not a supported regular expression"),
        ("<match> </match>", "<match> is empty"),
        (
            "<match apply_to_content=\"a:b\">x</match>",
            "`apply_to_content` of <match> is not supported",
        ),
        ("<match skip_headers=\"x\">x</match>", "`skip_headers` of <match> cannot be \"x\""),
        ("<dyn_variable name=\"v\" re=\"a\" header=\"b\"/>", "has several of re, header"),
        (
            "<dyn_variable name=\"v\" pgsql_expr=\"a\"/>",
            "`pgsql_expr` of <dyn_variable> is not supp",
        ),
        ("<dyn_variable name=\"v\" re=\"(\"/>", "<dyn_variable> `v`: "),
        ("<dyn_variable name=\"v\" xpath=\"//a\"/>", "`xpath` of <dyn_variable> is not supported"),
        ("<dyn_variable name=\"v[1]\"/>", "a variable cannot be called `v[1]`"),
    ] {
        let found = wrong_steps("ts_http", &format!("<request>{inner}<http url=\"/\"/></request>"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{inner}: {found:?}");
    }
}

#[test]
fn tsung_http_requests_are_converted() {
    let one = |text: &str| -> (Http, Vec<String>) {
        let (scenario, steps, warnings) = steps("ts_http", text);
        assert_eq!(check(&scenario), Ok(()), "{text}");
        let Act::Http(http) = steps[0].act.clone() else { panic!("http") };
        (*http, warnings)
    };
    let (http, warnings) = one(
        "<request subst=\"all_except_body\"><http url=\"/a b\" method=\"PUT\" version=\"1.0\" \
         contents=\"%%_x%%\" content_type=\"text/plain\" if_modified_since=\"Fri\">\
         <www_authenticate userid=\"u\" passwd=\"p\"/><soap action=\"do\"/>\
         <http_header name=\"X\" value=\"%%_tsung_userid%%\"/>\
         <http_header name=\"Y\" value=\"ab\" encoding=\"base64\"/>\
         <add_cookie key=\"k\" value=\"v\"/></http></request>",
    );
    assert_eq!((http.method.as_str(), http.version_1_0), ("PUT", true));
    assert_eq!((http.url, http.body), (literal("/a%20b"), Some(literal("%%_x%%"))));
    let names: Vec<&str> = http.headers.iter().map(|header| header.0.as_str()).collect();
    assert_eq!(names, ["X", "Y", "Content-Type", "If-Modified-Since", "SOAPAction"]);
    assert_eq!(http.headers[0].1.parts, [Part::Value(Generated::UserId)]);
    assert_eq!(http.headers[1].1, literal("YWI="));
    assert_eq!(http.headers[4].1, literal("\"do\""));
    assert_eq!(http.cookies, [("k".to_owned(), literal("v"))]);
    let auth = http.auth.unwrap();
    assert_eq!((auth.digest, auth.user, auth.password), (false, literal("u"), literal("p")));
    assert!(warnings[0].contains("is sent unchanged"), "the body is not substituted: {warnings:?}");
    let (http, _) = one(
        "<request><http url=\"/\" method=\"POST\" contents_from_file=\"bytes.bin\"/></request>",
    );
    assert_eq!(http.body.unwrap().parts, [Part::Literal(vec![0xff, 0])]);
    assert_eq!(http.headers[0].1, literal("application/x-www-form-urlencoded"));
    let (http, warnings) = one("<request><http url=\"/\" contents=\"a\"/></request>");
    assert_eq!((http.body, http.headers.len()), (None, 0));
    assert!(warnings[0].contains("`contents` of <http> is ignored (GET"), "{warnings:?}");
    let (http, _) = one(
        "<request><http url=\"/\"><www_authenticate type=\"digest\" userid=\"u\" passwd=\"p\" \
         realm=\"r\" nonce=\"n\" opaque=\"o\" qop=\"auth\"/></http></request>",
    );
    let auth = http.auth.unwrap();
    assert_eq!((auth.realm, auth.qop.as_deref()), (Some(literal("r")), Some("auth")));
    let (http, _) = one("<request><http url=\"HTTP://u:p@127.0.0.1:1/a\"/></request>");
    assert_eq!(http.url, literal("http://u:p@127.0.0.1:1/a"), "credentials stay in the URL");
    let oauth = "<request><http url=\"/\">\n<oauth consumer_key=\"a\" consumer_secret=\"b\"/>\
                 </http></request>";
    let found = wrong_steps("ts_http", oauth);
    assert_eq!(found, ["line 10: <oauth> is not supported (sign the request beforehand)"]);
}

#[test]
fn absolute_urls_add_servers() {
    let text = "<request><http url=\"http://127.0.0.1:4000/a\"/></request>\
                <request><http url=\"https://far?q\"/></request>\
                <request><http url=\"http://here:81\"/></request>";
    let parts = with_steps("ts_http", text);
    let map = vec![("here".to_owned(), "[::1]:82".to_owned())];
    let overrides = Overrides { map, ..Overrides::default() };
    let scenario = read_in(&parts.text(), &overrides, &Fake).unwrap().scenario;
    let targets: Vec<_> =
        scenario.targets.iter().map(|t| (t.address.to_string(), t.tls, t.weight)).collect();
    let wanted = [
        ("127.0.0.1:4000".to_owned(), false, 1.0),
        ("192.0.2.1:443".to_owned(), true, 0.0),
        ("[::1]:82".to_owned(), false, 0.0),
    ];
    assert_eq!(targets, wanted);
    assert!(scenario.tls.insecure, "as Tsung has it");
    let urls: Vec<Template> = scenario.sessions[0]
        .steps
        .iter()
        .map(|step| match &step.act {
            Act::Http(http) => http.url.clone(),
            act => panic!("{act:?}"),
        })
        .collect();
    let wanted = ["http://127.0.0.1:4000/a", "https://far/?q", "http://[::1]:82/"].map(literal);
    assert_eq!(urls, wanted);
    assert_eq!(check(&scenario), Ok(()));
    let unknown = wrong_steps("ts_http", "<request><http url=\"http://nowhere/\"/></request>");
    let wanted =
        "line 9: the host nowhere is not known (give its address with `--map nowhere=ADDRESS`)";
    assert_eq!(unknown, [wanted]);
}

#[test]
fn tsung_websocket_messages_are_converted() {
    let one = |text: &str| -> (Message, Vec<String>) {
        let text =
            format!("<request><websocket type=\"connect\"/></request><request>{text}</request>");
        let (scenario, steps, warnings) = steps("ts_websocket", &text);
        assert_eq!(check(&scenario), Ok(()), "{text}");
        let Act::Send(message) = steps[1].act.clone() else { panic!("a message") };
        (message, warnings)
    };
    let (message, _) = one("<websocket type=\"message\">  a\n b  </websocket>");
    assert_eq!((message.data, message.binary), (literal("a\n b"), true));
    assert_eq!(message.reply, Reply::First);
    let (message, _) =
        one("<websocket type=\"message\" ack=\"no_ack\" frame=\"text\">&lt;é</websocket>");
    assert_eq!((message.data, message.binary, message.reply), (literal("<é"), false, Reply::None));
    let (message, _) =
        one("<websocket type=\"message\" ack=\"local\"><![CDATA[<a>&]]></websocket>");
    assert_eq!((message.data, message.reply), (literal("<a>&"), Reply::First));
    let (message, _) = one(
        "<match>\"status\":\"ok\"</match><websocket type=\"message\" ack=\"match\">x</websocket>",
    );
    let wanted = Reply::Match(Matcher::Regex(Template::literal("\"status\":\"ok\"")));
    assert_eq!((message.reply, message.answer.checks.len()), (wanted, 1));
    let (message, warnings) = one("<websocket type=\"message\">a<!-- b -->c</websocket>");
    assert_eq!(message.data, literal("a"));
    assert!(warnings[0].contains("Tsung sends the first text only"), "{warnings:?}");
    let global = "<request><websocket type=\"connect\"/></request>\
                  <request><websocket type=\"message\" ack=\"global\">a</websocket></request>";
    let (_, steps, _) = steps("ts_websocket", global);
    assert_eq!(steps[2].act, Act::Gather { users: 100, timeout: None });
    let lone = "<request><websocket type=\"message\" ack=\"match\">x</websocket></request>";
    assert!(wrong_steps("ts_websocket", lone)[0].contains("no <match> that recognizes the reply"));
}

#[test]
fn tsung_websocket_connects_are_converted() {
    let text = "<request subst=\"true\">\
                <websocket type=\"connect\" path=\"/a?b=%%_tsung_userid%%\" \
                subprotocols=\"x, y\" origin=\"http://o\"><http_header name=\"A\" value=\"b\"/>\
                </websocket></request><request><websocket type=\"close\"/></request>";
    let (_, steps, warnings) = steps("ts_websocket", text);
    let Act::Connect(connect) = &steps[0].act else { panic!("a connect") };
    assert_eq!(connect.path.parts[1], Part::Value(Generated::UserId));
    assert_eq!(
        (connect.subprotocols.as_slice(), connect.headers.len()),
        (&["x".to_owned(), "y".to_owned()][..], 1)
    );
    assert_eq!(connect.origin, Some(literal("http://o")));
    assert_eq!((&steps[1].act, warnings.len()), (&Act::Close { code: 1000 }, 0));
    let late = "<request><websocket type=\"message\">a</websocket></request>";
    let (_, found, warnings) = crate::support::tsung::steps("ts_websocket", late);
    assert!(found.len() == 1 && warnings[0].contains("comes before a connect"), "{warnings:?}");
    let servers = "<server host=\"127.0.0.1\" port=\"4000\" type=\"ws\"/>".to_owned();
    let options = "<option name=\"websocket_path\" value=\"/p\"/>\
                   <option name=\"websocket_frame\" value=\"text\"/>";
    let parts = Parts { servers, options: options.to_owned(), ..with_steps("ts_websocket", late) };
    let loaded = parts.read().unwrap();
    let [connect, message] = only_session(&loaded).steps.as_slice() else { panic!("two steps") };
    let Act::Connect(connect) = &connect.act else { panic!("a connect") };
    let Act::Send(message) = &message.act else { panic!("a message") };
    assert_eq!((&connect.path, message.binary), (&literal("/p"), false));
}

#[test]
fn tsung_raw_requests_are_converted() {
    let text = "<request><raw data=\"HELO\" ack=\"local\"/></request>\
                <request><raw datasize=\"3\" ack=\"no_ack\"/></request>";
    let (scenario, steps, _) = steps("ts_raw", text);
    assert_eq!(check(&scenario), Ok(()));
    let found: Vec<(Template, Reply)> = steps
        .iter()
        .map(|step| match &step.act {
            Act::Raw(message) => (message.data.clone(), message.reply.clone()),
            act => panic!("{act:?}"),
        })
        .collect();
    assert_eq!(found, [(literal("HELO"), Reply::First), (literal("\0\0\0"), Reply::None)]);
}

#[test]
fn other_tsung_steps_are_converted() {
    let text = "<transaction name=\"t\"><interaction action=\"send\" id=\"x\"/>\
                <interaction action=\"receive\" id=\"x\"/></transaction>\
                <change_type new_type=\"ts_websocket\" host=\"far\" port=\"80\" \
                server_type=\"ssl\" store=\"true\" restore=\"false\"/>\
                <request><websocket type=\"connect\"/></request><abort/>";
    let (scenario, steps, _) = steps("ts_http", text);
    let Act::Transaction { name, steps: inner } = &steps[0].act else { panic!("a transaction") };
    let id = "x".to_owned();
    assert_eq!((name.as_str(), &inner[0].act), ("t", &Act::InteractionSend { id: id.clone() }));
    assert_eq!(inner[1].act, Act::InteractionReceive { id });
    let Act::Switch(Switch { target, store, restore, .. }) = steps[1].act else {
        panic!("a switch")
    };
    assert_eq!((target, store, restore, scenario.targets[1].tls), (1, true, false, true));
    assert_eq!(steps[3].act, Act::Abort);
    let wrong = "<request><websocket type=\"connect\"/></request>";
    let wanted = "line 9: <websocket> is in a session of <http> (the session's type, or a \
                  <change_type> before it, decides the protocol)";
    assert_eq!(wrong_steps("ts_http", wrong), [wanted]);
}

#[test]
fn requests_with_an_excluded_tag_are_left_out() {
    let text = "<request tag=\"a\"><http url=\"/1\"/></request>\
                <request tag=\"b\"><http url=\"/2\"/></request>\
                <request><http url=\"/3\"/></request>";
    let overrides = Overrides { exclude_tags: vec!["b".to_owned()], ..Overrides::default() };
    let loaded = read_in(&with_steps("ts_http", text).text(), &overrides, &Fake).unwrap();
    assert_eq!(only_session(&loaded).steps.len(), 2);
}
