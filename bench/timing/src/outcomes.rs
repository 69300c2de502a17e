//! The exit statuses of `simurgh load`: one run of each kind.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Result;

use simurgh_bench_kit::rounds::{Bench, Sample};

use super::{Recorder, load};

/// Users who come for 0.3 s and connect; `more` is the end of the file.
fn connects(server: SocketAddr, path: &str, more: &str) -> String {
    format!(
        "[target]\nurl = \"ws://{server}\"\n[[phase]]\nduration = \"300ms\"\nrate = 20\n\
         [[session]]\nprotocol = \"raw\"\nsteps = [{{ connect = \"{path}\" }}]\n{more}"
    )
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let recorder = Recorder::start()?;
    let good = SocketAddr::V4(recorder.address);
    // Its port is free once the listener is gone.
    let down = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0))?.local_addr()?;
    let flag = ["--pass", "errors == 0"];
    let mut wrong = 0;
    for (name, text, flags, documented) in [
        ("good", connects(good, "/0/0/upgrade/0", ""), &[][..], 0),
        ("down", connects(down, "/", ""), &[], 1),
        ("refused", connects(good, "/refuse", ""), &[], 1),
        ("pass", connects(good, "/0/0/upgrade/0", "[pass]\nusers_started = \"> 1000\"\n"), &[], 3),
        ("flag", connects(good, "/refuse", ""), &flag[..], 3),
        ("wrong_file", connects(good, "/", "[pas]\n"), &[], 2),
    ] {
        let ran = load(bench, &text, "toml", flags)?;
        sample.put(format!("outcome_{name}"), f64::from(ran.status));
        if ran.status != documented {
            wrong += 1;
            sample
                .note(format!("{name}: status {}, not {documented}: {}", ran.status, ran.printed));
        }
    }
    sample.put_count("outcomes_wrong", wrong);
    Ok(())
}
