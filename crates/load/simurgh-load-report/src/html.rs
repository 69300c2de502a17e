//! `report.html`: one file with charts and tables, without references to other files or hosts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use simurgh_load_record::Record;
use simurgh_load_scenario::Url;

use crate::dashboard::{PageView, Target, report_page};
use crate::outputs::Exporter;
use crate::whole::write_whole;

/// Copies of the scenario that a run's directory may have.
const SCENARIO_FILES: [&str; 2] = ["scenario.toml", "scenario.xml"];

const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Writes `report.html` at the end of the run; the journal gives the same after a kill.
#[derive(Debug)]
pub struct HtmlReport {
    dir: PathBuf,
    target: Target,
}

impl HtmlReport {
    /// A report in `dir`; nothing is written yet. A copy of the scenario there (`scenario.toml` or
    /// `scenario.xml`) is included, without passwords of URLs.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), target: Target::default() }
    }

    /// Includes the servers' own figures, which a [`Meter`](crate::meter::Meter) asks for.
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { target, ..self }
    }

    /// Renders the page. Fails only if the record cannot be written as JSON, which would be a bug.
    pub fn render(&self, record: &Record) -> io::Result<String> {
        let view = PageView::report(record, &self.target, self.scenario_text());
        let data = serde_json::to_string(&view)?;
        // Drawn after all texts of the run were written, so none of them can contain it.
        let nonce = format!("{:032x}", fastrand::u128(..));
        Ok(report_page(&data, &nonce))
    }

    fn scenario_text(&self) -> Option<String> {
        let small = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= SCENARIO_BYTES_MAX)
        };
        let path = SCENARIO_FILES.iter().map(|name| self.dir.join(name)).find(small)?;
        Some(Url::without_credentials(&String::from_utf8_lossy(&fs::read(path).ok()?)))
    }
}

impl Exporter for HtmlReport {
    fn finish(&mut self, record: &Record) -> io::Result<()> {
        write_whole(&self.dir.join("report.html"), self.render(record)?.as_bytes())
    }

    fn name(&self) -> &str {
        "report.html"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simurgh_load_record::{Ending, Meta};

    const HOSTILE: &str = "</script><script>x</script><!--";

    fn record() -> Record {
        let meta = Meta { scenario: HOSTILE.into(), ..Meta::default() };
        let mut record = Record::new(meta);
        record.finish(1000, Ending::Finished);
        record
    }

    #[test]
    fn html_report_is_complete_and_escapes_its_data() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("scenario.xml"), HOSTILE).unwrap();
        HtmlReport::new(folder.path()).finish(&record()).unwrap();
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(!page.contains(HOSTILE) && !page.contains("<!--") && !page.contains("{{"));
        let (_, rest) = page.split_once("application/json").unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["scenario"], HOSTILE);
        assert_eq!(data["scenario_text"], HOSTILE);
        assert_eq!(data["ending"], "finished");
    }

    #[test]
    fn html_report_leaves_out_url_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[target]\nurl = \"http://user:secret@a\"\n";
        std::fs::write(folder.path().join("scenario.toml"), text).unwrap();
        let page = HtmlReport::new(folder.path()).render(&record()).unwrap();
        assert!(page.contains("http://a") && !page.contains("secret"), "{page}");
    }

    #[test]
    fn each_html_report_has_its_own_nonce_and_needs_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mut report = HtmlReport::new(&folder.path().join("gone"));
        assert_ne!(report.render(&record()).unwrap(), report.render(&record()).unwrap());
        assert_eq!(report.finish(&record()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
