//! Descriptors, files, threads and memory.

use super::super::machine::{Group, Limit, Machine, Memory, Reading};
use super::row::{Plan, Row, THREADS_OTHER, bytes, grouped};
use super::shards;
use crate::SHARDS_MAX;

pub(super) fn rows(machine: &Machine, plan: &Plan) -> Vec<Row> {
    let mut rows = vec![shards(plan)];
    rows.extend(process_limit(machine, plan));
    rows.push(open_max(machine, plan));
    rows.push(files_of_the_system(machine, plan));
    rows.push(watches(machine, plan));
    rows.push(memory(machine, plan));
    rows.extend(machine.memory_groups.iter().map(|group| memory_group(group, plan)));
    rows.push(threads_of_the_system(machine, plan, "kernel.threads-max", "threads"));
    rows.push(threads_of_the_system(machine, plan, "kernel.pid_max", "thread ids"));
    rows.push(processes(machine, plan));
    rows.extend(machine.thread_groups.iter().map(|group| thread_group(group, plan)));
    rows.push(mappings(machine, plan));
    rows
}

fn shards(plan: &Plan) -> Row {
    let connections = plan.wanted.connections;
    let is_enough = shards::holds(connections, plan.descriptors, u64::MAX);
    let mut row = Row::of("shards", grouped(u64::from(SHARDS_MAX)), grouped(plan.shards))
        .unless(is_enough, "a higher hard RLIMIT_NOFILE")
        .why(format!(
            "each shard is a thread with its own table of {} descriptors; at least one per core \
             ({} cores); another shard costs 105 kB and one wake-up descriptor in each other one; \
             at most {}",
            grouped(plan.descriptors),
            plan.cores,
            grouped(u64::from(SHARDS_MAX)),
        ));
    if is_enough {
        row.how = format!("serve --max-connections {connections} starts them");
    }
    row
}

fn process_limit(machine: &Machine, plan: &Plan) -> [Row; 2] {
    let need = shards::descriptors(plan.wanted.connections);
    let side = |side: fn(&Limit) -> u64| machine.nofile.as_ref().map(side).map_err(String::clone);
    let (soft, hard) = (side(|limit| limit.soft), side(|limit| limit.hard));
    let mut soft = Row::limit("RLIMIT_NOFILE soft", &soft, 0, grouped, "")
        .why("descriptors of one table until the process asks for more, up to the hard limit");
    "-".clone_into(&mut soft.need);
    if hard.is_ok() {
        "serve and load raise it to the hard limit".clone_into(&mut soft.how);
    }
    let how = "limits.d and a new login, or systemd LimitNOFILE= (--print limits, systemd)";
    let hard_row = Row::limit("RLIMIT_NOFILE hard", &hard, need, grouped, how).why(format!(
        "descriptors per shard, not per process: a lower limit only needs more shards, at most \
         {}. Even root needs CAP_SYS_RESOURCE to raise it",
        grouped(u64::from(SHARDS_MAX))
    ));
    [soft, hard_row.caps(hard.map(|hard| shards::most(hard, u64::MAX)))]
}

fn open_max(machine: &Machine, plan: &Plan) -> Row {
    let need = shards::descriptors(plan.wanted.connections);
    Row::setting(machine, "fs.nr_open", &[need])
        .why("the most that RLIMIT_NOFILE may be set to, and that one table grows to")
        .caps(machine.number("fs.nr_open").map(|max| shards::most(max, u64::MAX)))
}

/// Room for files of other programs.
const FILES_SPARE: u64 = 10_000;
/// Files of a shard or worker other than connections: poll set, waker, listeners, timer, hand-off.
const FILES_OF_THREAD: u64 = 16;

fn files_of_the_system(machine: &Machine, plan: &Plan) -> Row {
    let used = machine.number("fs.file-nr").unwrap_or(0);
    let others = used
        .saturating_add(FILES_SPARE)
        .saturating_add(plan.threads().saturating_mul(FILES_OF_THREAD));
    let caps = machine.number("fs.file-max").map(|max| max.saturating_sub(others) / plan.ends);
    let need = plan.sockets().saturating_add(others);
    let mut row = Row::with_spare(machine, "fs.file-max", need, FILES_SPARE);
    if machine.is_root == Some(true) {
        // The row remains, since the server often runs as another user.
        row.exempt = " (for all but root)";
    }
    row.why(format!(
        "open files of the whole system: a connection needs {}, and {} others are open now. At \
         the limit only root can open files",
        if plan.ends == 1 { "one" } else { "two, one at each end" },
        grouped(used),
    ))
    .caps(caps)
}

fn watches(machine: &Machine, plan: &Plan) -> Row {
    let name = "fs.epoll.max_user_watches";
    let others = plan.threads().saturating_mul(FILES_OF_THREAD).saturating_add(FILES_SPARE);
    let caps = machine.number(name).map(|max| max.saturating_sub(others) / plan.ends);
    Row::setting(machine, name, &[plan.sockets().saturating_add(others)])
        .why(
            "sockets that all poll sets of one user may watch; each connection is one (at each \
             end that is here). Its default follows the memory at boot, 4 % of it",
        )
        .caps(caps)
}

/// Kernel memory of an established socket with its file and its place in a poll set.
const SOCKET_BYTES: u64 = 4_200;
/// Memory of the server for an idle connection, and of the generator for an idle user.
const CONNECTION_BYTES: u64 = 256;
const USER_BYTES: u64 = 128;
/// A shard or worker without connections.
const THREAD_BYTES: u64 = 105_000;

fn connection_bytes(plan: &Plan) -> u64 {
    let clients = if plan.wanted.local_clients { SOCKET_BYTES + USER_BYTES } else { 0 };
    SOCKET_BYTES + CONNECTION_BYTES + clients
}

fn memory_need(plan: &Plan) -> u64 {
    let threads = plan.threads().saturating_mul(THREAD_BYTES);
    plan.wanted.connections.saturating_mul(connection_bytes(plan)).saturating_add(threads)
}

/// Connections that fit into this many bytes together with their shards.
fn memory_caps(plan: &Plan, room_bytes: u64) -> u64 {
    let first = room_bytes / connection_bytes(plan);
    let threads = shards::shards(first, plan.descriptors).max(plan.cores).saturating_mul(plan.ends);
    room_bytes.saturating_sub(threads.saturating_mul(THREAD_BYTES)) / connection_bytes(plan)
}

const MEMORY_WHY: &str = "an idle connection costs 4.2 kB of the kernel's memory at each end that \
    is here, 256 bytes in the server and 128 in the generator; data under way (tcp_mem) and what \
    your channels keep comes on top";

fn memory(machine: &Machine, plan: &Plan) -> Row {
    let available = machine.memory.clone().map(|Memory { available, .. }| available);
    let how = "more memory, fewer connections, or several machines";
    Row::limit("memory", &available, memory_need(plan), bytes, how)
        .why(MEMORY_WHY)
        .caps(available.map(|available| memory_caps(plan, available)))
}

fn memory_group(group: &Reading<Group>, plan: &Plan) -> Row {
    let room = group.as_ref().map(Group::room).map_err(String::clone);
    let how = "systemd MemoryMax=, or the container's limit";
    let why = match group {
        Ok(Group { file, limit, .. }) => format!(
            "memory left in {file} of {}, kernel memory of sockets included; above it the kernel \
             kills the process",
            bytes(*limit)
        ),
        Err(_) => MEMORY_WHY.to_owned(),
    };
    Row::limit("cgroup memory", &room, memory_need(plan), bytes, how)
        .why(why)
        .caps(room.map(|room| memory_caps(plan, room)))
}

/// The most connections with a limit on threads: almost all threads are shards.
fn threads_caps(plan: &Plan, room_threads: u64) -> u64 {
    let rest = room_threads.saturating_sub(THREADS_OTHER) / plan.ends;
    shards::most(plan.descriptors, rest)
}

/// Room for threads of other programs.
const THREADS_SPARE: u64 = 1_000;

fn threads_of_the_system(machine: &Machine, plan: &Plan, name: &'static str, what: &str) -> Row {
    let running = machine.threads.clone().unwrap_or(0);
    let need = running.saturating_add(plan.threads());
    let caps = machine.number(name).map(|max| threads_caps(plan, max.saturating_sub(running)));
    Row::with_spare(machine, name, need, THREADS_SPARE)
        .why(format!(
            "{what} of the whole system: {} run now, server and clients add {}",
            grouped(running),
            grouped(plan.threads())
        ))
        .caps(caps)
}

fn processes(machine: &Machine, plan: &Plan) -> Row {
    let soft = machine.nproc.clone().map(|limit| limit.soft);
    let how = "limits.d and a new login, or systemd LimitNPROC=";
    Row::limit("RLIMIT_NPROC", &soft, plan.threads(), grouped, how)
        .why("threads of one user, those of its other programs included; root is exempt")
        .caps(match machine.is_root {
            Some(true) => Err("exempt".to_owned()),
            _ => soft.map(|soft| threads_caps(plan, soft)),
        })
}

fn thread_group(group: &Reading<Group>, plan: &Plan) -> Row {
    let room = group.as_ref().map(Group::room).map_err(String::clone);
    let how = "systemd TasksMax=, or the container's limit";
    let row = Row::limit("cgroup pids", &room, plan.threads(), grouped, how);
    let row = row.caps(room.map(|room| threads_caps(plan, room)));
    match group {
        Ok(Group { file, limit, .. }) => {
            row.why(format!("threads that {file} leaves of {}", grouped(*limit)))
        }
        Err(_) => row,
    }
}

/// Mappings of a thread (stack, its guard, the allocator's), and of everything else.
const MAPPINGS_OF_THREAD: u64 = 16;
const MAPPINGS_OTHER: u64 = 4_096;

fn mappings(machine: &Machine, plan: &Plan) -> Row {
    let need = plan.threads().saturating_mul(MAPPINGS_OF_THREAD).saturating_add(MAPPINGS_OTHER);
    let room_threads = |max: u64| max.saturating_sub(MAPPINGS_OTHER) / MAPPINGS_OF_THREAD;
    Row::setting(machine, "vm.max_map_count", &[need])
        .why("mappings of one process: some for each thread's stack and memory")
        .caps(machine.number("vm.max_map_count").map(|max| threads_caps(plan, room_threads(max))))
}
