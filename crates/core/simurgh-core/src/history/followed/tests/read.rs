//! Requests from outside of channels.

use std::sync::Mutex;

use simurgh_history::GapReason;

use super::*;

impl Node {
    fn asks_for(&mut self, topic: &str, since: Option<Position>) -> Arc<Mutex<Vec<HistoryPage>>> {
        let pages: Arc<Mutex<Vec<HistoryPage>>> = Arc::default();
        let heard = Arc::clone(&pages);
        let range = Range { since, limit: 100, is_reverse: false };
        let answer: PageCallback = Box::new(move |page| heard.lock().unwrap().push(page));
        self.test_shard.node.request_history(HistoryRequest::Read(topic.into(), range, answer));
        self.settles();
        pages
    }

    pub(super) fn reads(&mut self, topic: &str, since: Option<Position>) -> HistoryPage {
        let pages = self.asks_for(topic, since);
        let page = pages.lock().unwrap().pop();
        page.expect("it is known")
    }
}

fn seqs(page: &HistoryPage) -> Vec<u64> {
    page.messages.iter().map(|it| it.position.place.seq).collect()
}

#[test]
fn reading_a_topic_follows_it_and_waits_for_its_history() {
    for (mut it, mut engine, topic) in both() {
        (1..=2).for_each(|n| engine.receives(&topic, n, false));
        let pages = it.asks_for(&topic, None);
        assert!(pages.lock().unwrap().is_empty());
        it.is_served(&mut engine);
        let page = pages.lock().unwrap().pop().unwrap();
        assert_eq!((page.gap, seqs(&page)), (None, vec![17, 24]));
        assert!(page.messages.iter().all(|it| it.at_ms == 1_000_000));
        // While it is read, it is followed again now and then.
        assert_eq!(seqs(&it.reads(&topic, Some(engine.position(0)))), [24]);
        it.looks();
        assert!(it.follows.is_empty());
        it.advances(Duration::from_secs(6));
        it.reads(&topic, None);
        it.looks();
        assert_eq!(it.follows, [&*topic]);
        engine.receives(&topic, 3, false);
        let pages = it.asks_for(&topic, Some(engine.position(2)));
        assert!(pages.lock().unwrap().is_empty());
        it.hears_last(&engine);
        it.settles();
        let page = pages.lock().unwrap().pop().unwrap();
        assert_eq!((page.gap, page.position), (None, engine.position(2)));
    }
}

#[test]
fn unknown_history_is_unavailable_and_retained_messages_are_returned() {
    for (mut it, mut engine, topic) in both() {
        let pages = it.asks_for(&topic, None);
        it.advances(Duration::from_millis(2_100));
        let page = pages.lock().unwrap().pop().unwrap();
        assert_eq!((page.gap, page.first), (Some(GapReason::Unavailable), None));
        it.is_served(&mut engine);
        it.hears_of(&mut engine, &topic, 1);
        it.is_told(&topic, FromEngine::Unknown);
        let pages = it.asks_for(&topic, None);
        assert!(pages.lock().unwrap().is_empty());
        it.advances(Duration::from_millis(2_100));
        let page = pages.lock().unwrap().pop().unwrap();
        assert_eq!((page.gap, seqs(&page)), (Some(GapReason::Unavailable), vec![17]));
    }
}

#[test]
fn purge_reports_its_result() {
    let (mut it, mut engine) = (Node::running(talking()), Engine::new());
    for topic in it.topics() {
        let answers: Arc<Mutex<Vec<Result<Position, NotKept>>>> = Arc::default();
        let ask = |it: &Node| {
            let answers = Arc::clone(&answers);
            let answer = Box::new(move |it| answers.lock().unwrap().push(it));
            it.test_shard.node.request_history(HistoryRequest::Forget((&*topic).into(), answer));
        };
        ask(&it);
        it.settles();
        it.looks();
        let (_, number) = it.forgets.pop().unwrap();
        it.is_answered(number, Err(NotKept::Refused("no".into())));
        ask(&it);
        it.is_served(&mut engine);
        let told = std::mem::take(&mut *answers.lock().unwrap());
        let last = engine.position(engine.log.len() - 1);
        assert_eq!(told, [Err(NotKept::Refused("no".into())), Ok(last)]);
    }
}

#[test]
fn followed_topics_are_listed() {
    let rule = HistoryRule { age: Duration::from_secs(5), ..HistoryRule::default() };
    let mut it = Node::on(Config::default(), talking(), rule);
    let mut engine = Engine::new();
    let topic = it.here.clone();
    let (_, joined) = it.joins(&mut engine, &topic, OPTED_IN);
    it.hears_of(&mut engine, &topic, 1);
    let listed: Arc<Mutex<Vec<usize>>> = Arc::default();
    let list = |it: &mut Node| {
        let heard = Arc::clone(&listed);
        let answer = move |some: HistoryTopics| {
            heard.lock().unwrap().extend(some.topics.iter().map(|it| it.messages));
        };
        it.test_shard.node.request_history(HistoryRequest::Topics(0, 0, 9, Box::new(answer)));
        it.settles();
        std::mem::take(&mut *listed.lock().unwrap())
    };
    assert_eq!(list(&mut it), [1]);
    (0..20).for_each(|_| it.advances(Duration::from_secs(6)));
    assert_eq!(list(&mut it), [0]);
    let last = engine.position(0).to_string();
    assert_eq!(it.resumes(&mut engine, &topic, &last), ["simurgh:resumed true"]);
    assert_eq!(
        it.resumes(&mut engine, &topic, &position_of(&joined[1])),
        ["simurgh:resumed expired"]
    );
    it.begun.clear();
    it.advances(Duration::from_secs(6));
    it.is_told(&topic, FromEngine::Ended);
    assert_eq!(list(&mut it), [0usize; 0]);
}
