//! Echoes what it reads; the smallest protocol a shard can serve.
//!
//! `echo --listen ADDR [--shards N] [--pin CORE]` prints `listening on ADDR` when it is ready.
//! With `--pin` all shards share that core.

use simurgh_reactor::{Accepted, Closed, Config, Handler, Io, Key, Next, ShardSet, Slow};

struct Echo;

impl Handler for Echo {
    type Conn = ();
    type Mail = ();

    fn accepted(&mut self, _: &mut Io<()>, _: Accepted) -> Option<()> {
        Some(())
    }

    fn readable(&mut self, io: &mut Io<()>, key: Key, data: &mut [u8]) {
        io.send(key, data);
    }

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, _: &mut Io<()>, (): ()) {}

    fn turn_end(&mut self, _: &mut Io<()>) -> Next {
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut listen, mut shards, mut config) = ("127.0.0.1:0".to_owned(), 1, Config::default());
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--listen" => listen = value,
            "--shards" => shards = value.parse()?,
            "--pin" => config.core = Some(value.parse()?),
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let mut set = ShardSet::prepare(shards, 1 << 20)?;
    let addresses = set.bind(&[listen.parse()?])?;
    let running = (0..shards)
        .map(|index| set.spawn(&format!("echo-{index}"), config.clone(), |_| Echo))
        .collect::<Result<Vec<_>, _>>()?;
    for address in addresses {
        println!("listening on {address}");
    }
    for shard in running {
        shard.join()?;
    }
    Ok(())
}
