//! The page's files, in the binary. The report uses the same files.

const DASHBOARD: &str = include_str!("../../assets/dashboard.html");
const REPORT: &str = include_str!("../../assets/report.html");
const REPORT_SCRIPT: &str = include_str!("../../assets/report.js");

pub(super) use simurgh_page::{ICON, STYLE};

/// Further scripts of the live page and the report, in the order of their dependencies.
const SHARED_SCRIPTS: [&str; 2] =
    [include_str!("../../assets/tables.js"), include_str!("../../assets/view.js")];
const LIVE_SCRIPT: &str = include_str!("../../assets/live.js");

fn shared_scripts() -> String {
    simurgh_page::SCRIPTS.concat() + &SHARED_SCRIPTS.concat()
}

pub(super) fn live_page(token: &str) -> String {
    DASHBOARD.replace("{{token}}", token)
}

pub(super) fn live_script() -> String {
    shared_scripts() + LIVE_SCRIPT
}

/// The report as one file without other files. `data` is the view as JSON; `nonce` must not be in
/// any text of the run: only our own script and style run.
pub(crate) fn report_page(data: &str, nonce: &str) -> String {
    // The data come last, so that placeholders in them are not replaced.
    REPORT
        .replace("{{nonce}}", nonce)
        .replace("{{style}}", STYLE)
        .replace("{{script}}", &(shared_scripts() + REPORT_SCRIPT))
        .replace("{{data}}", &script_safe(data))
}

/// Equivalent JSON that cannot end the script that contains it: `<` only occurs within texts.
fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_the_script_that_contains_it() {
        let hostile = serde_json::json!({ "a": "</script><script>x</script> <!-- {{script}} &" });
        let page = report_page(&hostile.to_string(), "abc");
        assert_eq!(page.matches("</script").count(), 2);
        assert_eq!(page.matches("<script").count(), 2);
        let (_, rest) = page.split_once("type=\"application/json\" nonce=\"abc\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(data).unwrap(), hostile);
    }

    #[test]
    fn our_own_files_fetch_nothing_and_can_be_put_into_a_page() {
        let script = shared_scripts() + LIVE_SCRIPT + REPORT_SCRIPT;
        let own = script.replace("http://www.w3.org/2000/svg", "");
        for text in [own.as_str(), STYLE, DASHBOARD, REPORT] {
            assert!(!text.contains("http://") && !text.contains("https://"));
        }
        for mark in ["</script", "<!--", "{{", "innerHTML ", "insertAdjacentHTML", "eval("] {
            assert!(!script.contains(mark), "{mark}");
        }
        assert!(!STYLE.contains("</style") && !STYLE.contains("{{"));
    }
}
