//! `wrk`, and what it says.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::serve::Server;

/// What `wrk` found.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Timed {
    #[serde(skip)]
    pub(crate) requests: u64,
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    /// Answers that were not 200 and connections that broke.
    pub(crate) errors: u64,
}

/// Has `connections` ask in a closed loop for so many seconds.
pub(crate) fn ask(
    server: &Server,
    connections: u32,
    seconds: u32,
    core: Option<usize>,
) -> Result<Timed> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.arg("exec");
    if let Some(core) = core {
        command.args(["--core", &core.to_string()]);
    }
    command.args(["--", "wrk", "-t1", "--latency", "--timeout", "10s"]);
    command.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    command.arg(format!("http://{}/", server.address));
    let output = command.stdin(Stdio::null()).output().context("start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "wrk (Debian's package of that name): {}{text}",
        String::from_utf8_lossy(&output.stderr)
    );
    parse(&text).with_context(|| format!("wrk said something else than expected:\n{text}"))
}

fn parse(text: &str) -> Option<Timed> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let find = |mark: &str| text.lines().find(|line| line.contains(mark)).map(words);
    let quantile = |mark: &str| microseconds(find(mark)?.get(1)?);
    let number = |word: &String| word.trim_matches([',', ':']).parse().ok();
    let broken = find("Socket errors:");
    let broken: u64 = broken.iter().flatten().filter_map(number).sum();
    let not_200 = find("Non-2xx").and_then(|words| number(words.last()?)).unwrap_or(0);
    Some(Timed {
        requests: number(find("requests in")?.first()?)?,
        requests_per_s: find("Requests/sec:")?.get(1)?.parse().ok()?,
        p50_us: quantile("50%")?,
        p90_us: quantile("90%")?,
        p99_us: quantile("99%")?,
        errors: broken + not_200,
    })
}

fn microseconds(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 2s test @ http://127.0.0.1:1/\n  1 threads and 8 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   337.00us  185.00us   \
        9.17ms   98.43%\n    Req/Sec    24.40k     1.95k   26.90k    80.95%\n  Latency \
        Distribution\n     50%  312.00us\n     75%  345.00us\n     90%  389.00us\n     99%    \
        1.07ms\n  50968 requests in 2.10s, 133.06MB read\n";

    #[test]
    fn what_wrk_says_is_understood() {
        let text = format!("{SAID}Requests/sec:  24270.07\nTransfer/sec:     63.36MB\n");
        let timed = Timed {
            requests: 50_968,
            requests_per_s: 24_270.07,
            p50_us: 312.0,
            p90_us: 389.0,
            p99_us: 1_070.0,
            errors: 0,
        };
        assert_eq!(parse(&text), Some(timed));
        let text = format!(
            "{SAID}  Socket errors: connect 0, read 3, write 0, timeout 1\n  Non-2xx or 3xx \
             responses: 5\nRequests/sec:  1.0\n"
        );
        assert_eq!(parse(&text).map(|timed| timed.errors), Some(9));
        assert_eq!(parse("nothing"), None);
    }
}
