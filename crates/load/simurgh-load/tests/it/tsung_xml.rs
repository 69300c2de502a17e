//! The XML of Tsung's scenarios, its entities, and its DTD.

use simurgh_load::scenario::{Act, Overrides, Part, Template};
use simurgh_load::tsung::read_in;

use crate::support::tsung::{Fake, Parts, lines, only_session, with_steps, wrong_steps};

fn literal(text: &str) -> Template {
    Template { parts: vec![Part::Literal(text.as_bytes().to_vec())] }
}

#[test]
fn malformed_xml_is_refused() {
    for (from, to, wanted) in [
        ("</sessions>", "", "line 10: not well-formed: </tsung> found where <sessions> of line 8"),
        ("</tsung>", "", "line 3: not well-formed: <tsung> is never closed"),
        (
            "</tsung>",
            "</tsung><tsung/>",
            "line 10: not well-formed: <tsung> after the root element",
        ),
        ("</tsung>", "</tsung>\nx", "line 11: not well-formed: text outside of the root element"),
        // A line end that is written as a reference does not end a line.
        (
            "</tsung>",
            "</tsung>\n&#xA;x",
            "line 11: not well-formed: text outside of the root element",
        ),
        ("<tsung ", "<tsung version=\"2\" ", "<tsung> has the attribute `version` twice"),
        ("url=\"/\"", "url=\"/?a&b\"", "line 9: not well-formed: a `&` begins no reference"),
        ("url=\"/\"", "url=\"/&nbsp;\"", "line 9: the entity `&nbsp;` is not declared"),
        ("url=\"/\"", "url=\"/&#1;\"", "line 9: `&#1;` is not a character that XML allows"),
        ("url=\"/\"", "url=\"/<\"", "line 9: a `<` is in the value of an attribute"),
        ("url=\"/\"", "url=/", "line 9: not well-formed: an attribute of <http>"),
        (
            "<request>",
            "<request>\u{1}",
            "line 9: not well-formed: XML does not allow the character",
        ),
        ("<request>", "<request>a & b", "line 9: not well-formed: a `&` begins no reference"),
        ("<request>", "<request>\n\n text", "line 11: <request> can hold no text, and has `text`"),
        ("<request>", "<!-- ", "not well-formed"),
        (
            "<sessions>",
            "<sessions><sesion/>",
            "line 8: <sesion> is not an element of Tsung (in <se",
        ),
        ("<sessions>", "<sessions><server/>", "line 8: <server> is not allowed in <sessions>"),
        ("<tsung ", "<scenario ", "line 3: the root element is <scenario>"),
    ] {
        let mut text = Parts::default().text().replacen(from, to, 1);
        if to == "<scenario " {
            text = text.replace("</tsung>", "</scenario>");
        }
        let faults = read_in(&text, &Overrides::default(), &Fake).unwrap_err();
        let found = lines(&faults.0);
        assert!(found[0].contains(wanted), "{to}: {found:?}");
    }
    for text in ["", " \n", "x", "<?xml version=\"1.0\"?>", "{}"] {
        assert!(read_in(text, &Overrides::default(), &Fake).is_err(), "{text}");
    }
}

#[test]
fn attribute_errors_have_the_line_of_the_attribute() {
    let text =
        Parts::default().text().replace("url=\"/\"", "url=\"/\"\n  version=\"1.1\"\n  verb=\"X\"");
    let faults = read_in(&text, &Overrides::default(), &Fake).unwrap_err();
    assert!(lines(&faults.0)[0].starts_with("line 11: <http> has no attribute `verb`"), "{faults}");
}

#[test]
fn windows_line_endings_do_not_change_the_sent_bytes() {
    let text = "<request><websocket type=\"connect\"/></request>\n<request>\
                <websocket type=\"message\">a\nb</websocket></request>";
    let plain = with_steps("ts_websocket", text).text();
    let read = |text: &str| read_in(text, &Overrides::default(), &Fake).unwrap().scenario;
    assert_eq!(read(&plain), read(&plain.replace('\n', "\r\n")));
    assert_eq!(read(&plain), read(&format!("\u{feff}{plain}")));
}

#[test]
fn xml_entities_are_expanded() {
    let declare = |text: &str| {
        let parts =
            with_steps("ts_http", "&more;&twice;<request><http url=\"/&word;\"/></request>");
        let text = parts.text().replace("tsung-1.0.dtd\"", &format!("tsung-1.0.dtd\" [{text}]"));
        read_in(&text, &Overrides::default(), &Fake)
    };
    let loaded = declare(
        "<!-- a --><!ENTITY more SYSTEM \"more.xml\"> <!ENTITY word \"a&amp;b\">\
         <!ENTITY twice '&more;&more;'>",
    );
    let steps = only_session(loaded.as_ref().unwrap()).steps.clone();
    assert_eq!(steps.len(), 7);
    assert!(steps.iter().all(|step| step.line == 9), "the line of the reference");
    let Act::Http(http) = &steps[6].act else { panic!("http") };
    assert_eq!(http.url, literal("/a&b"));
    for (text, wanted) in [
        ("<!ENTITY more '&more;'>", "line 9: in the entity `&more;`"),
        ("<!ENTITY more SYSTEM \"no.xml\">", "line 9: the entity `&more;`: cannot read no.xml"),
        ("<!ENTITY more SYSTEM \"bytes.bin\">", "is not UTF-8"),
        ("<!ENTITY more '<a>'>", "in the entity `&more;`: not well-formed: <a> is never closed"),
        ("<!ELEMENT a EMPTY>", "line 2: the DOCTYPE declares `<!ELEMENT a EMPTY>`"),
        ("<!ENTITY more>", "line 2: the declaration `<!ENTITY more>` is not understood"),
    ] {
        let found = lines(&declare(text).unwrap_err().0);
        assert!(found[0].contains(wanted), "{text}: {found:?}");
    }
}

#[test]
fn xml_entities_that_would_exhaust_memory_are_refused() {
    let mut declarations = "<!ENTITY a0 '<thinktime/>'>".to_owned();
    for level in 1..30 {
        let many = format!("&a{};", level - 1).repeat(30);
        declarations.push_str(&format!("<!ENTITY a{level} '{many}'>"));
    }
    for last in [6, 29] {
        let parts = with_steps("ts_http", &format!("&a{last};"));
        let dtd = format!("tsung-1.0.dtd\" [{declarations}]");
        let text = parts.text().replace("tsung-1.0.dtd\"", &dtd);
        let found = lines(&read_in(&text, &Overrides::default(), &Fake).unwrap_err().0);
        assert!(found[0].contains("larger than") || found[0].contains("too deep"), "{found:?}");
    }
}

#[test]
fn deeply_nested_xml_is_refused() {
    let open = "<if var=\"tsung_userid\" eq=\"1\">".repeat(500);
    let close = "</if>".repeat(500);
    let found = wrong_steps("ts_http", &format!("{open}<abort/>{close}"));
    assert_eq!(found, ["line 9: elements nest deeper than 64"]);
}

#[test]
fn strict_mode_follows_the_dtd() {
    let strict = Overrides { strict: true, ..Overrides::default() };
    let sound = Parts::default().text().replace("<options></options>", "<options/>");
    assert!(read_in(&sound, &strict, &Fake).is_ok());
    for (from, to, wanted) in [
        ("type=\"tcp\"", "type=\"ws\"", "`type` of <server> cannot be \"ws\""),
        ("url=\"/\"", "url=\"/\" method=\"PURGE\"", "`method` of <http> cannot be \"PURGE\""),
        ("phase=\"1\"", "phase=\"a b\"", "`phase` of <arrivalphase> cannot be \"a b\""),
        (
            "<request>",
            "<request><http url=\"/\"/>",
            "contents of <request> are not in order: http http",
        ),
        ("<options/>", "<options/><options/>", "the contents of <tsung> are not in order"),
        (
            "<request>",
            "<for var=\"i\" from=\"1\" to=\"2\"></for><request>",
            "contents of <for> are not",
        ),
        (
            "<request>",
            "<transaction name=\"a\"><set_option name=\"b\"/></transaction><request>",
            "<set_option> is not allowed in <transaction>",
        ),
        ("tsung-1.0.dtd", "other.dtd", "line 3: the DOCTYPE names `tsung` and"),
        ("<?xml", "\n<?xml", "line 2: not well-formed: `<?xml` must be first"),
    ] {
        let text = sound.replacen(from, to, 1);
        let found = lines(&read_in(&text, &strict, &Fake).unwrap_err().0);
        assert!(found[0].contains(wanted), "{to}: {found:?}");
    }
}
