//! Any bytes as an envelope, or as the payload of one.
//!
//! The first byte chooses: with 1 to 9 the rest is the payload of that kind (with a right checksum,
//! if the kind has one), otherwise it is an envelope. The envelope read must be written as the same
//! bytes, and its broadcasts must fit into frames.
use simurgh_cluster::{
    Draft, Envelope, EnvelopeError, Header, Item, ItemPayload, Kind, Message, NodeId,
    PresenceParts, PresenceUpdate, ask_drafts, delta_drafts, resent, stamped, state_drafts,
};
use simurgh_proto::message::events;
use simurgh_proto::serializer::{Frame, Kind as Sort, Serializer, ServerMessage};

const ORIGIN: NodeId = NodeId(7);

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [choice, bytes @ ..] = data else { return };
    match choice {
        1 => envelope(&by_hand(1, b"t", &item(0, b"e", bytes))),
        2 | 4 => {
            let mut part = vec![0, 0, 1, 0];
            part.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
            part.extend_from_slice(bytes);
            envelope(&by_hand(*choice, b"t", &item(1, b"", &part)));
        }
        3 | 5..=9 => envelope(&by_hand(*choice, b"", &item(1, b"", bytes))),
        _ => envelope(bytes),
    }
}

/// An envelope of one item, by the table in envelope.rs.
fn by_hand(kind: u8, topic: &[u8], item: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, kind, 0, 0];
    bytes.extend_from_slice(&ORIGIN.0.to_le_bytes());
    bytes.extend_from_slice(&1_u64.to_le_bytes());
    bytes.extend_from_slice(&(topic.len() as u16).to_le_bytes());
    bytes.extend_from_slice(topic);
    bytes.extend_from_slice(&1_u16.to_le_bytes());
    bytes.extend_from_slice(item);
    bytes
}

fn item(flags: u8, event: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flags, event.len() as u8];
    bytes.extend_from_slice(event);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn envelope(bytes: &[u8]) {
    let header = Header::read(bytes);
    let envelope = match Envelope::decode(bytes) {
        Ok(envelope) => envelope,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(header.is_err_and(|it| it.is_of_another_version()), {
                error.is_of_another_version()
            });
            return;
        }
    };
    assert_eq!(header, Ok(envelope.header));
    assert_eq!(envelope.items().count(), envelope.items().len());
    match envelope.message() {
        Ok(message) => said(&envelope, bytes, message),
        Err(error) => assert!(!error.is_of_another_version()),
    }
}

fn said(envelope: &Envelope<'_>, bytes: &[u8], message: Message<'_>) {
    let Header { kind, origin, .. } = envelope.header;
    let drafted = match message {
        Message::Broadcasts(mut items) => {
            items.clone().for_each(|item| in_a_frame(envelope.topic, &item));
            let first = items.next().expect("one at least");
            let mut draft = Draft::broadcast(origin, envelope.topic, &first).expect("as it was");
            items.for_each(|item| draft.push(&item).expect("as it was"));
            draft
        }
        Message::Presence(part) => {
            let told = PresenceParts::new(1 << 20).take(part);
            return told.map_or_else(wrong, |told| told_again(envelope, told));
        }
        Message::AskState(topics) => match &ask_drafts(origin, topics).expect("as it was")[..] {
            [draft] => draft.clone(),
            none => return assert!(none.is_empty(), "it asked for nothing"),
        },
        Message::Beat(beat) => beat.draft().expect("as it was"),
        Message::Hello(hello) => hello.draft().expect("as it was"),
        Message::Bye => Draft::bye(origin).expect("as it was"),
        Message::Disconnect { number } => {
            Draft::disconnect(origin, envelope.topic, number).expect("as it was")
        }
        Message::Order { number, order } => Draft::order(origin, number, order).expect("as it was"),
        Message::Answer { number } => Draft::answer(origin, number).expect("as it was"),
        Message::Done { number, count } => Draft::done(origin, number, count).expect("as it was"),
        Message::Call(piece) | Message::Return(piece) => {
            piece.draft(kind, origin).expect("as it was")
        }
        Message::HangUp { number } => Draft::hang_up(origin, number).expect("as it was"),
        Message::Grants(grants) => Draft::grants(origin, grants).expect("as it was"),
        Message::Forget => Draft::forget(origin, envelope.topic).expect("as it was"),
    };
    assert!(!matches!(kind, Kind::Presence | Kind::State));
    let again = stamped(drafted.unnumbered(), envelope.header.n);
    // Unknown flags are not written.
    assert_eq!((&again[..2], &again[4..]), (&bytes[..2], &bytes[4..]));
    let marked = resent(again);
    assert_eq!((&marked[2..4], &marked[4..]), (&[1, 0][..], &bytes[4..]));
}

fn wrong(error: EnvelopeError) {
    assert!(!error.is_of_another_version());
}

/// A presence update must be the same when it is written and read again.
fn told_again(envelope: &Envelope<'_>, told: Option<PresenceUpdate>) {
    let Some(told) = told else { return };
    let drafts = match &told {
        PresenceUpdate::Delta(delta) => delta_drafts(envelope.topic, delta),
        PresenceUpdate::Snapshot(snapshot) => state_drafts(envelope.topic, snapshot),
    };
    let mut again = None;
    let mut parts = PresenceParts::new(4 << 20);
    for draft in drafts.expect("it came in one") {
        let bytes = draft.numbered(1);
        let envelope = Envelope::decode(&bytes).expect("just written");
        let Ok(Message::Presence(part)) = envelope.message() else { panic!("{envelope:?}") };
        assert_eq!(again, None, "the last part completes it");
        again = parts.take(part).expect("just written");
    }
    assert_eq!(again, Some(told));
}

/// The V2 frame must have the item's content.
fn in_a_frame(topic: &str, item: &Item<'_>) {
    assert!(!events::is_reserved(item.event));
    let payload = item.payload.to_payload();
    let mut out = Vec::new();
    let Ok(sort) = Serializer::V2.broadcast(&mut out, topic, item.event, &payload) else {
        assert!(!matches!(item.payload, ItemPayload::Json(_)), "text fits into any frame");
        return;
    };
    let frame = match sort {
        Sort::Text => Frame::Text(std::str::from_utf8(&out).expect("a text frame")),
        Sort::Binary => Frame::Binary(&out),
    };
    let Ok(ServerMessage::Event(heard)) = Serializer::V2.decode_server(frame) else {
        panic!("{item:?} is no frame");
    };
    let is_user = matches!(item.payload, ItemPayload::User(_));
    assert_eq!(heard.event, if is_user { events::BROADCAST } else { item.event });
    assert_eq!((&*heard.topic, &heard.payload), (topic, &payload));
}
