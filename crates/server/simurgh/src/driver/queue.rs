//! Posts a driver's commands to the shards.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_shard::mail::Mail;
use simurgh_shard::mail::driver::{Charge, CommandKind, DriverCommand, EventQueue};
use simurgh_shard::server::Server;

use super::Error;

pub(crate) fn post(
    server: &Arc<Server>,
    queue: &Arc<EventQueue>,
    shard: u16,
    what: CommandKind,
) -> Result<(), Error> {
    let is_control = matches!(what, CommandKind::Attach(_) | CommandKind::Detach);
    let bytes = size_of::<DriverCommand>()
        + match &what {
            CommandKind::Send(keys, sent) => size_of_val(&**keys) + sent.weight(),
            CommandKind::Close(keys) => size_of_val(&**keys),
            CommandKind::Connect(connect) => connect.head.len(),
            CommandKind::Attach(_) | CommandKind::Settle(_) | CommandKind::Detach => 0,
        };
    let at = usize::from(shard);
    let Some((mailbox, ended)) = server.mailboxes.get(at).zip(server.ended.get(at)) else {
        return Err(Error::Ended);
    };
    if ended.load(Relaxed) {
        return Err(Error::Ended);
    }
    // A command that exceeds the whole limit may pass when nothing else is queued.
    let under_way = mailbox.bytes();
    if !is_control && under_way != 0 && under_way.saturating_add(bytes) > mailbox.bytes_max() {
        return Err(Error::Congested);
    }
    let charge = Charge::new(mailbox, bytes);
    let command = DriverCommand { queue: Arc::clone(queue), what, _charge: charge };
    match mailbox.post_anyway(Mail::Drive(Box::new(command))) {
        true => Ok(()),
        false => Err(Error::Ended),
    }
}
