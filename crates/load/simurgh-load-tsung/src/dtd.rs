//! What may stand where, after the DTD of Tsung 1.7.0, and the additions that we take beyond it.
//!
//! One line of [`RULES`] is one element. Content models are written as in a DTD. An attribute is
//! its name, then `#` for a name token or `(a|b)` for one of these, then `!` if it must be there
//! or `=value` for a default.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

use simurgh_load_scenario::Diagnostic;

use super::xml::{Document, Element};

/// The file that a DOCTYPE of Tsung names.
const FILE: &str = "tsung-1.0.dtd";
/// Where it is installed.
const PLACES: &[&str] =
    &["", "/usr/share/tsung/", "/usr/local/share/tsung/", "/opt/tsung/share/tsung/"];

const TYPES: &str = "(ts_jabber|ts_http|ts_raw|ts_pgsql|ts_ldap|ts_webdav|ts_mysql|ts_fs|ts_shell\
                     |ts_job|ts_websocket|ts_amqp|ts_mqtt)";
const CONDITION: &str = "var! eq neq gt gte lt lte";

/// Elements that are steps of a session: beyond the DTD, we take each wherever one of them may be.
const STEPS: &[&str] = &[
    "request",
    "thinktime",
    "transaction",
    "setdynvars",
    "for",
    "repeat",
    "if",
    "change_type",
    "foreach",
    "set_option",
    "interaction",
    "abort",
];

/// Name, content, attributes.
const RULES: &[(&str, &str, &str)] = &[
    (
        "tsung",
        "(information?,clients,servers,monitoring?,load,options?,sessions)",
        "dumptraffic(true|false|light|protocol|protocol_local)=false \
      backend(text|json|rrdtool|fullstats)=text \
      loglevel(emergency|critical|error|warning|notice|info|debug)=notice version#",
    ),
    ("information", "(name|description|username|organisation)*", ""),
    ("name", "#PCDATA", ""),
    ("description", "#PCDATA", ""),
    ("username", "#PCDATA", ""),
    ("organisation", "#PCDATA", ""),
    ("servers", "(server+)", ""),
    (
        "server",
        "EMPTY",
        "host#! port#! weight#=1 type(ssl|tcp|udp|erlang|ssl6|tcp6|udp6|bosh|bosh_ssl|websocket\
      |websocket_ssl)!",
    ),
    ("clients", "(client+)", ""),
    (
        "client",
        "(ip*|iprange)",
        "cpu#=1 type(machine|batch)=machine host# batch(torque|pbs|lsf|oar) scan_intf# \
      maxusers#=800 use_controller_vm(true|false)=false weight#=1",
    ),
    ("ip", "EMPTY", "value#! scan(true|false)=false"),
    ("iprange", "EMPTY", "value#! version#=v4"),
    ("monitoring", "(monitor+)", ""),
    (
        "monitor",
        "(snmp?|munin?|mysqladmin?)",
        "host#! batch(true|false)=false type(snmp|erlang|munin)=erlang",
    ),
    ("mysqladmin", "EMPTY", "port#=3306 username#=root password#"),
    ("snmp", "(oid)*", "version(v1|v2)=v1 community#=public port#=161"),
    ("oid", "EMPTY", "value#! name#! type#=sample eval"),
    ("munin", "EMPTY", "port#=4949"),
    ("load", "(arrivalphase|user)+", "duration# unit(hour|minute|second)=second loop#=0"),
    (
        "arrivalphase",
        "(users|session_setup)+",
        "duration#! phase#! wait_all_sessions_end#=false unit(hour|minute|second|millisecond)!",
    ),
    ("users", "EMPTY", "interarrival# arrivalrate# unit(hour|minute|second)! maxnumber#"),
    ("user", "EMPTY", "start_time# unit(hour|minute|second|millisecond)=second session!"),
    ("options", "(option*)", ""),
    (
        "option",
        "(user_agent*)",
        "name#! override(true|false) random(true|false) id# min# max# \
      type(ts_http|ts_jabber|ts_pgsql|ts_amqp) value",
    ),
    (
        "set_option",
        "(user_agent*|certificate)",
        "name#! id# min# max# type(ts_http|ts_jabber|ts_pgsql) value",
    ),
    ("certificate", "EMPTY", "cacertfile keyfile keypass certfile"),
    ("sessions", "(session+)", ""),
    (
        "session",
        "(request|thinktime|transaction|setdynvars|for|repeat|if|change_type|foreach|set_option\
      |interaction|abort)*",
        "name! bidi persistent(true|false) probability# weight# type{TYPES}!",
    ),
    ("session_setup", "EMPTY", "name! probability# weight#"),
    ("abort", "EMPTY", "type(session|all)=session"),
    ("interaction", "EMPTY", "action(send|receive)! id!"),
    (
        "change_type",
        "EMPTY",
        "new_type{TYPES}! host! port! server_type#! store(true|false)=false \
         restore(true|false)=false bidi(true|false)=false",
    ),
    (
        "request",
        "(match*,dyn_variable*,(http|jabber|raw|pgsql|ldap|mysql|fs|shell|job|websocket|amqp\
         |mqtt))",
        "subst(true|false|all_except_body)=false tag#=undefined",
    ),
    (
        "match",
        "#PCDATA",
        "do(continue|loop|abort|restart|log|dump|abort_test)=continue when(match|nomatch)=match \
      subst(true|false)=false loop_back#=0 name#=- max_loop#=20 max_restart#=3 sleep_loop#=5 \
      apply_to_content#=undefined skip_headers#=no",
    ),
    ("thinktime", "EMPTY", "random(true|false)=false value min# max#"),
    ("user_agent", "#PCDATA", "probability#!"),
    (
        "transaction",
        "(request|setdynvars|thinktime|for|repeat|if|foreach|interaction|abort)+",
        "name#!",
    ),
    (
        "http",
        "(oauth?,www_authenticate?,soap?,http_header*,add_cookie*)",
        "contents contents_from_file content_type if_modified_since \
      method(GET|POST|PUT|PATCH|DELETE|HEAD|PROPFIND|PROPPATCH|COPY|MOVE|LOCK|UNLOCK|MKCOL\
      |MKACTIVITY|OPTIONS|REPORT|VERSION-CONTROL|MERGE|CHECKOUT)=GET url! version(1.0|1.1)=1.1",
    ),
    ("soap", "EMPTY", "action!"),
    (
        "dyn_variable",
        "EMPTY",
        "name! xpath re jsonpath pgsql_expr regexp header decode(html_entities|false)=false",
    ),
    ("http_header", "EMPTY", "name! encoding value"),
    ("add_cookie", "EMPTY", "key! domain path value!"),
    (
        "www_authenticate",
        "EMPTY",
        "passwd! userid! nonce opaque cnonce nc realm qop type(basic|digest)=basic",
    ),
    (
        "oauth",
        "EMPTY",
        "consumer_key! consumer_secret! access_token access_token_secret \
      method(HMAC-SHA1|PLAINTEXT|RSA-SHA1)=HMAC-SHA1",
    ),
    (
        "jabber",
        "(xmpp_authenticate?)",
        "ack(global|local|no_ack|parse|bidi_ack)! \
      destination(online|offline|random|unique|previous)=random id# size#=0 data type#! \
      stamped(true|false)=false show(away|chat|dnd|xa)=chat status=Available nick room group node \
      send_version(true|false)=false regexp resource=tsung node_type version cacertfile keyfile \
      keypass certfile subid",
    ),
    ("xmpp_authenticate", "EMPTY", "passwd! username!"),
    (
        "fs",
        "EMPTY",
        "cmd(read|write|open|delete|stat|copy|read_chunk|write_chunk|close|make_dir|del_dir\
      |make_symlink)=write path size=1024 position mode(read|write|append) dest",
    ),
    ("shell", "EMPTY", "cmd! args="),
    (
        "job",
        "EMPTY",
        "type(oar|torque)=oar req(submit|delete|stat|suspend|resume|wait_jobs)! script walltime \
      duration jobid resources nodes queue options user name=tsung notify_port notify_script",
    ),
    (
        "pgsql",
        "#PCDATA",
        "password database username name_portal name_prepared query parameters max_rows=0 formats \
      formats_results contents_from_file type(connect|authenticate|sql|close|bind|parse|cancel|call\
      |sync|execute|describe|flush|copy|copydone|copyfail)!",
    ),
    ("mysql", "#PCDATA", "password database username type(connect|authenticate|sql|close)!"),
    ("raw", "EMPTY", "ack(global|local|no_ack)! datasize data"),
    (
        "ldap",
        "(attr*|modification*)",
        "password user type(bind|unbind|search|start_tls|add|modify)! result_var filter base \
      scope(singleLevel|baseObject|wholeSubtree) cacertfile keyfile certfile dn",
    ),
    (
        "websocket",
        "#PCDATA",
        "type(connect|message|close)! ack(no_ack|parse) frame(binary|text) origin= subprotocols= \
      path=/",
    ),
    (
        "amqp",
        "#PCDATA",
        "type! vhost=/ channel=-1 exchange= routing_key= payload= payload_size=100 prefetch_size=0 \
      prefetch_count=0 persistent=false queue= timeout=1 ack=false",
    ),
    (
        "mqtt",
        "#PCDATA",
        "type! clean_start=false keepalive=10 will_topic= will_qos=0 will_msg= will_retain=false \
      topic= qos=0 retained=false timeout=1 username= password=",
    ),
    ("modification", "(attr*)", "type!"),
    ("attr", "(value+)", "type!"),
    ("value", "#PCDATA", ""),
    (
        "setdynvars",
        "(var*)",
        "sourcetype(random_string|urandom_string|random_number|file|erlang|eval|jsonpath|value\
      |server)! callback code fileid order(iter|random) delimiter length start end from jsonpath \
      value",
    ),
    ("var", "#PCDATA", "name!"),
    (
        "for",
        "(request|thinktime|transaction|setdynvars|for|if|repeat|change_type|foreach|interaction\
      |abort)+",
        "var! from! to! incr#=1",
    ),
    (
        "foreach",
        "(request|thinktime|transaction|setdynvars|foreach|if|repeat|change_type|for|interaction\
      |abort)+",
        "name#! in#! include exclude",
    ),
    (
        "repeat",
        "(request|thinktime|transaction|setdynvars|for|repeat|while|if|until|change_type|foreach\
      |interaction|abort)+",
        "name#! max_repeat#=20",
    ),
    (
        "if",
        "(request|thinktime|transaction|setdynvars|for|repeat|while|if|until|change_type|foreach\
      |interaction|abort)+",
        "{CONDITION}",
    ),
    ("while", "EMPTY", "{CONDITION}"),
    ("until", "EMPTY", "{CONDITION}"),
];

/// What is taken beyond the DTD: element, attribute, values. From 1.8.0, or our own.
const MORE_VALUES: &[(&str, &str, &[&str])] = &[
    ("server", "type", &["ws", "wss"]),
    ("websocket", "ack", &["local", "global", "match"]),
    ("http", "method", &["PURGE"]),
    ("setdynvars", "sourcetype", &["local_file"]),
];

/// Attributes that the DTD wants and that have a meaning when they are not there, with a warning.
const MAY_LACK: &[(&str, &str)] = &[("users", "unit"), ("arrivalphase", "unit")];

/// An element of the DTD.
#[derive(Debug)]
struct Rule {
    content: &'static str,
    /// Names that the content model mentions.
    children: Vec<&'static str>,
    attributes: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    name: &'static str,
    token: bool,
    values: Option<Vec<&'static str>>,
    required: bool,
}

static TABLE: LazyLock<HashMap<&'static str, Rule>> = LazyLock::new(|| {
    let rules = RULES.iter().map(|&(name, content, attributes)| {
        let children = content.split(|c: char| !is_name_char(c)).filter(|name| !name.is_empty());
        let children = if content.starts_with('(') { children.collect() } else { Vec::new() };
        (name, Rule { content, children, attributes: declared(attributes) })
    });
    rules.collect()
});

fn declared(text: &'static str) -> Vec<Declared> {
    let words = text.split_whitespace().flat_map(|word| match word {
        "{CONDITION}" => CONDITION.split_whitespace().collect::<Vec<_>>(),
        word => vec![word],
    });
    words.map(one_declared).collect()
}

fn one_declared(word: &'static str) -> Declared {
    let end = word.find(['#', '(', '{', '!', '=']).unwrap_or(word.len());
    let (name, rest) = word.split_at(end);
    let list = if rest.starts_with("{TYPES}") { TYPES } else { rest };
    let values = list.strip_prefix('(').and_then(|list| list.split_once(')'));
    let values = values.map(|(list, _)| list.split('|').collect());
    let token = rest.starts_with('#');
    Declared { name, token, values, required: rest.ends_with('!') }
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

/// Holds a document against the DTD: with `strict` as it stands, else with our additions, and
/// without order and number, which the lowering looks after.
pub(super) fn check(
    document: &Document,
    strict: bool,
    warnings: &mut Vec<Diagnostic>,
) -> Vec<Diagnostic> {
    let mut checker = Checker { strict, diagnostics: Vec::new() };
    checker.doctype(document, warnings);
    let root = &document.root;
    if root.name == "tsung" {
        checker.element(root);
    } else {
        let what = format!("the root element is <{}>", root.name);
        checker
            .diagnostics
            .push(Diagnostic::at(root.line, what).help("a scenario begins with <tsung>"));
    }
    checker.diagnostics
}

struct Checker {
    strict: bool,
    diagnostics: Vec<Diagnostic>,
}

impl Checker {
    fn wrong(&mut self, line: u32, what: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::at(line, what).help(help));
    }

    fn doctype(&mut self, document: &Document, warnings: &mut Vec<Diagnostic>) {
        let line = document.root.line;
        let Some(doctype) = &document.doctype else {
            let diagnostic =
                Diagnostic::at(line, "there is no DOCTYPE, and Tsung would not read the file");
            let known = PLACES.get(1).copied().unwrap_or_default();
            let diagnostic =
                diagnostic.help(format!("put <!DOCTYPE tsung SYSTEM \"{known}{FILE}\"> before it"));
            if self.strict {
                self.diagnostics.push(diagnostic)
            } else {
                warnings.push(diagnostic)
            }
            return;
        };
        let system = doctype.system.as_deref().unwrap_or_default();
        let (place, file) = match system.rfind('/') {
            Some(at) => system.split_at(at + 1),
            None => ("", system),
        };
        if doctype.root != "tsung" || file != FILE {
            let what = format!("the DOCTYPE names `{}` and \"{system}\"", doctype.root);
            let diagnostic =
                Diagnostic::at(line, what).help(format!("Tsung wants `tsung` and {FILE}"));
            if self.strict { self.diagnostics.push(diagnostic) } else { warnings.push(diagnostic) }
        } else if !PLACES.contains(&place) && !self.strict {
            let what = format!("the DOCTYPE names \"{system}\", which Tsung installs nowhere");
            warnings.push(Diagnostic::at(line, what).help("it is not needed here"));
        }
    }

    fn element(&mut self, element: &Element) {
        let Some(rule) = TABLE.get(element.name.as_str()) else { return };
        self.attributes(element, rule);
        self.text(element, rule);
        let before = self.diagnostics.len();
        for child in element.children() {
            self.child(element, rule, child);
        }
        if self.strict && self.diagnostics.len() == before {
            self.model(element, rule);
        }
        for child in element.children() {
            self.element(child);
        }
    }

    fn attributes(&mut self, element: &Element, rule: &Rule) {
        let name = &element.name;
        for attribute in &element.attributes {
            let (key, value) = (attribute.name.as_str(), attribute.value.as_str());
            let Some(declared) = rule.attributes.iter().find(|declared| declared.name == key)
            else {
                let known: Vec<&str> = rule.attributes.iter().map(|known| known.name).collect();
                let what = format!("<{name}> has no attribute `{key}`");
                self.wrong(attribute.line, what, listed("it has", &known));
                continue;
            };
            if let Some(values) = &declared.values {
                let more = if self.strict { &[][..] } else { more_values(name, key) };
                if !values.contains(&value) && !more.contains(&value) {
                    let all: Vec<&str> = values.iter().chain(more).copied().collect();
                    let what = format!("`{key}` of <{name}> cannot be \"{value}\"");
                    self.wrong(attribute.line, what, listed("one of", &all));
                }
            } else if self.strict && declared.token && !is_token(value) {
                let what = format!("`{key}` of <{name}> cannot be \"{value}\"");
                self.wrong(attribute.line, what, "a word of letters, digits and . - _ : is wanted");
            }
        }
        for declared in rule.attributes.iter().filter(|declared| declared.required) {
            let may_lack = !self.strict && MAY_LACK.contains(&(name.as_str(), declared.name));
            if element.attribute(declared.name).is_none() && !may_lack {
                let what = format!("<{name}> lacks its attribute `{}`", declared.name);
                let help = declared.values.as_deref().map(|values| listed("one of", values));
                self.wrong(element.line, what, help.unwrap_or_default());
            }
        }
    }

    fn text(&mut self, element: &Element, rule: &Rule) {
        if rule.content == "#PCDATA" {
            return;
        }
        if let Some((text, line)) = element.texts().next() {
            let blanks = text.len() - text.trim_start().len();
            let newlines = text.get(..blanks).unwrap_or_default().matches('\n').count();
            let line = line.saturating_add(u32::try_from(newlines).unwrap_or_default());
            let head: String = text.trim().chars().take(30).collect();
            let what = format!("<{}> can hold no text, and has `{head}`", element.name);
            self.wrong(line, what, "");
        }
    }

    fn child(&mut self, parent: &Element, rule: &Rule, child: &Element) {
        let name = child.name.as_str();
        let allowed =
            rule.children.contains(&name) || (!self.strict && more_children(parent, name));
        if allowed {
            return;
        }
        let what = match TABLE.contains_key(name) {
            true => format!("<{name}> cannot stand in <{}>", parent.name),
            false => format!("<{name}> is not an element of Tsung"),
        };
        let help = match rule.children.as_slice() {
            [] => format!("<{}> can hold no elements", parent.name),
            children => listed(&format!("in <{}> can stand", parent.name), children),
        };
        self.wrong(child.line, what, help);
    }

    /// Order and number of the children.
    fn model(&mut self, element: &Element, rule: &Rule) {
        if !rule.content.starts_with('(') {
            return;
        }
        let mut pattern = String::from("^(?:");
        let mut name = String::new();
        for c in rule.content.chars().chain([',']) {
            if is_name_char(c) {
                name.push(c);
                continue;
            }
            if !name.is_empty() {
                pattern.push_str(&format!("(?:{} )", regex::escape(&name)));
                name.clear();
            }
            if c != ',' {
                pattern.push(c);
            }
        }
        pattern.push_str(")$");
        let children: String = element.children().map(|child| format!("{} ", child.name)).collect();
        if Regex::new(&pattern).is_ok_and(|pattern| !pattern.is_match(&children)) {
            let found = if children.is_empty() { "nothing" } else { children.trim_end() };
            let what = format!("the contents of <{}> are not in order: {found}", element.name);
            self.wrong(element.line, what, format!("wanted: {}", rule.content));
        }
    }
}

fn more_values(element: &str, attribute: &str) -> &'static [&'static str] {
    let more = MORE_VALUES.iter().find(|more| more.0 == element && more.1 == attribute);
    more.map_or(&[], |more| more.2)
}

fn more_children(parent: &Element, name: &str) -> bool {
    match parent.name.as_str() {
        "websocket" => name == "http_header",
        "session" | "transaction" | "for" | "foreach" | "repeat" | "if" => STEPS.contains(&name),
        _ => false,
    }
}

fn is_token(value: &str) -> bool {
    !value.is_empty() && value.chars().all(is_name_char)
}

/// `it has: a, b, c`.
fn listed(head: &str, names: &[&str]) -> String {
    match names {
        [] => format!("{head} none"),
        names => format!("{head}: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        assert_eq!(RULES.len(), 67, "elements of Tsung 1.7.0");
        assert_eq!(TABLE.len(), RULES.len(), "none twice");
        let attributes: usize = TABLE.values().map(|rule| rule.attributes.len()).sum();
        assert_eq!(attributes, 295, "attributes of Tsung 1.7.0");
        for (name, rule) in TABLE.iter() {
            for child in &rule.children {
                assert!(TABLE.contains_key(child), "{name} may hold {child}");
            }
            for declared in &rule.attributes {
                assert!(declared.name.chars().all(is_name_char), "{name} {}", declared.name);
                for value in declared.values.iter().flatten() {
                    assert!(is_token(value), "{name} {} {value}", declared.name);
                }
            }
        }
        let types = TABLE["session"].attributes.iter().find(|a| a.name == "type").unwrap();
        assert_eq!((types.values.as_ref().unwrap().len(), types.required), (13, true));
        assert_eq!(TABLE["until"].attributes.len(), 7);
    }
}
