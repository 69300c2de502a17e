//! Queues, tables and memory of the network.

use super::super::machine::Machine;
use super::row::{Plan, Row, USERS_PER_WORKER, bytes, command, grouped, plain};

pub(super) fn rows(machine: &Machine, plan: &Plan) -> Vec<Row> {
    let mut rows = vec![
        memory_under_way(machine, plan),
        buffers(machine, "net.ipv4.tcp_rmem", RECEIVE_WHY),
        buffers(machine, "net.ipv4.tcp_wmem", SEND_WHY),
        backlog(machine),
        half_open(machine),
        packets(machine, plan),
        orphans(machine, plan),
        time_wait(machine, plan),
        established(machine, plan),
    ];
    rows.extend(tracked(machine, plan));
    rows.push(ports(machine, plan));
    rows
}

/// `tcp_mem`: one page of data for each end on this machine. Below the first number nothing is
/// regulated, above the second buffers stop growing, above the third allocation fails; they have
/// the ratios of the kernel's defaults.
fn memory_under_way(machine: &Machine, plan: &Plan) -> Row {
    let name = "net.ipv4.tcp_mem";
    let wanted = plan.sockets();
    let half = machine.memory.as_ref().map(|memory| memory.total / 2 / machine.page_bytes.max(1));
    // Without the size of memory, the usable part is unknown.
    let pages = match &half {
        Ok(half) => wanted.min(*half),
        Err(_) => 0,
    };
    let need = [pages / 2, pages - pages / 3, pages];
    let row = match &half {
        Ok(_) => Row::setting(machine, name, &need),
        Err(why) => Row::setting(machine, name, &need).unknown(why),
    };
    let mut why =
        "pages of data in transit in all sockets: none for an idle socket, one for a socket with \
         a small message. Above the third number the kernel drops and repeats packets, so \
         broadcasts take longer; no connection is lost"
            .to_owned();
    if pages < wanted && half.is_ok() {
        let receivers = grouped(pages / plan.ends);
        why.push_str(&format!(
            ". tune requests at most half of the memory, so {receivers} connections can have \
             a message in transit at once"
        ));
    }
    row.why(why)
}

/// Smallest, first and largest buffer of a socket, in bytes. A broadcast of the usual few hundred
/// bytes fits the smallest.
const BUFFERS: [u64; 3] = [4_096, 16_384, 64 << 10];

const RECEIVE_WHY: &str = "buffer sizes for received data: smallest, initial, largest. Large \
    values cost idle connections nothing; small ones split large messages";
const SEND_WHY: &str = "buffer sizes for sent, not acknowledged data: smallest, initial, largest. \
    What does not fit waits in the server, which costs more CPU";

fn buffers(machine: &Machine, name: &'static str, why: &str) -> Row {
    Row::setting(machine, name, &BUFFERS).why(why)
}

/// The backlog that each shard requests when it listens.
fn backlog_wanted() -> u64 {
    u64::try_from(simurgh_reactor::Config::default().backlog).unwrap_or(0)
}

fn backlog(machine: &Machine) -> Row {
    Row::setting(machine, "net.core.somaxconn", &[backlog_wanted()]).why(format!(
        "connections that wait for a shard to accept them; the server requests {}. Above it \
         clients retry after a second",
        grouped(backlog_wanted())
    ))
}

fn half_open(machine: &Machine) -> Row {
    let name = "net.ipv4.tcp_max_syn_backlog";
    let row = match machine.number("net.ipv4.tcp_syncookies") {
        Ok(cookies) if cookies > 0 => {
            let target = machine.sysctl(name).map_or(vec![backlog_wanted()], <[u64]>::to_vec);
            let mut row = Row::with_target(machine, name, "-".to_owned(), target);
            if row.how.is_empty() {
                row.how = format!("unused while net.ipv4.tcp_syncookies is {cookies}");
            }
            row
        }
        _ => Row::setting(machine, name, &[backlog_wanted()]),
    };
    row.why(
        "half-open connections of each listener, if SYN cookies are off; with cookies the \
         backlog above is the bound",
    )
}

/// The kernel's default, and the size of a burst on one core to clients on the same machine.
const PACKETS: u64 = 1_000;
const PACKETS_LOCAL: u64 = 10_000;

fn packets(machine: &Machine, plan: &Plan) -> Row {
    let need = if plan.wanted.local_clients { PACKETS_LOCAL } else { PACKETS };
    let drops = match machine.backlog_drops {
        Ok(drops) => format!(" {} have been dropped since boot.", grouped(drops)),
        Err(_) => String::new(),
    };
    Row::setting(machine, "net.core.netdev_max_backlog", &[need]).why(format!(
        "packets that wait for a core, mostly to 127.0.0.1.{drops} A dropped packet costs 200 ms \
         or more"
    ))
}

fn orphans(machine: &Machine, plan: &Plan) -> Row {
    Row::setting(machine, "net.ipv4.tcp_max_orphans", &[plan.sockets()]).why(
        "closed sockets with data to send: all of them during a drain. Above the limit the kernel \
         resets them, and clients may miss the close code 1012",
    )
}

fn time_wait(machine: &Machine, plan: &Plan) -> Row {
    Row::setting(machine, "net.ipv4.tcp_max_tw_buckets", &[plan.wanted.connections]).why(
        "closed connections in TIME_WAIT, for a minute at the end that closed first: all of them \
         after a drain. Above the limit they skip it, which rarely matters",
    )
}

/// Sockets on one chain of the hash table, above which lookups become slow.
const CHAIN: u64 = 4;
/// The most entries of a table that belongs to a name space.
const ENTRIES_MAX: u64 = 1 << 24;

fn established(machine: &Machine, plan: &Plan) -> Row {
    let need = plan.sockets().div_ceil(CHAIN).next_power_of_two();
    let row = |have: &str| Row::of("TCP hash table", have, grouped(need));
    let entries = match &machine.established_entries {
        Ok(entries) => *entries,
        Err(why) => return row("?").unknown(why),
    };
    let chain = plan.sockets() as f64 / entries as f64;
    row(&grouped(entries))
        .unless(entries >= need, format!("boot parameter thash_entries={need}, then a reboot"))
        .why(format!(
            "hash table in which the kernel finds a packet's socket. {} sockets make chains of \
             {chain:.1}, which slows every packet and refuses none. Without a reboot: {}, then \
             start the server in a new network namespace",
            grouped(plan.sockets()),
            command("net.ipv4.tcp_child_ehash_entries", &[need.min(ENTRIES_MAX)]),
        ))
}

/// Memory of a tracked connection.
const TRACKED_BYTES: u64 = 320;
/// Room for connections of other programs.
const TRACKED_SPARE: u64 = 10_000;

/// `None` without connection tracking.
fn tracked(machine: &Machine, plan: &Plan) -> Option<Row> {
    let name = "net.netfilter.nf_conntrack_max";
    machine.sysctl(name).ok()?;
    let count = machine.number("net.netfilter.nf_conntrack_count").unwrap_or(0);
    let connections = plan.wanted.connections;
    let need = connections.saturating_add(count);
    let mut row = Row::with_spare(machine, name, need, TRACKED_SPARE).why(format!(
        "connections that the firewall follows, {} now; beyond it new ones are dropped. Each costs \
         {TRACKED_BYTES} bytes, {} for all. Better than raising it is not to follow the server's \
         port: `iptables -t raw -A PREROUTING -p tcp --dport PORT -j NOTRACK`, and OUTPUT with \
         --sport",
        grouped(count),
        bytes(connections.saturating_mul(TRACKED_BYTES)),
    ));
    if count > 0 {
        let caps = machine.number(name).map(|max| max.saturating_sub(count));
        return Some(row.caps(caps));
    }
    if row.is_changeable() {
        let how =
            format!("no connection is tracked now; if a firewall rule tracks them: {}", row.how);
        row = row.unknown(&how);
    }
    Some(row)
}

/// The kernel's default, enough for a `simurgh load` worker's four addresses of 127/8.
const PORTS_USUAL: (u64, u64) = (32_768, 60_999);
/// Addresses of a worker on loopback, and the most workers.
const ADDRESSES_OF_WORKER: u64 = 4;
const WORKERS_MAX: u64 = 2_000;

/// The only setting that is a range, which has to be wider.
fn ports(machine: &Machine, plan: &Plan) -> Row {
    let name = "net.ipv4.ip_local_port_range";
    let (first, last) = match machine.sysctl(name) {
        Ok([first, last]) => (*first, *last),
        _ => PORTS_USUAL,
    };
    let span = last.saturating_sub(first).saturating_add(1);
    let need = match plan.wanted.local_clients {
        true => USERS_PER_WORKER.min(plan.wanted.connections).div_ceil(ADDRESSES_OF_WORKER),
        false => 0,
    };
    let target = match span >= need {
        true => vec![first, last],
        false => vec![first.min(PORTS_USUAL.0), last.max(PORTS_USUAL.1)],
    };
    let shown = if need == 0 { "-".to_owned() } else { format!("{} ports", grouped(need)) };
    let mut row = Row::with_target(machine, name, shown, target).why(
        "ports of one source address to one server: they limit clients and proxies, never the \
         server. simurgh load takes four addresses of 127.0.0.0/8 per worker",
    );
    if row.how.is_empty() && need == 0 {
        row.how = "only clients and proxies need ports".to_owned();
    }
    let has_range = machine.sysctl(name).is_ok() && plan.wanted.local_clients;
    let most = span.saturating_mul(ADDRESSES_OF_WORKER * WORKERS_MAX);
    row.caps(if has_range { Ok(most) } else { Err(plain(&[span])) })
}
