//! Parts that all hooks of a server share: the cache, and ids of requests.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::error::Unspecified;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::Notify;

use crate::answer::IdOf;
use crate::cache::{Cache, Key, Voids};
use crate::config::HookConfig;
use crate::news::{self, Gathered, News};

const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
const CACHES: usize = 16;

/// Parts that all hooks of a server share.
pub struct Shared {
    /// Makes ids unique over all nodes and starts.
    start: String,
    next_id: AtomicU64,
    random: SystemRandom,
    /// The ids of the sockets that answers let in.
    id_of: RwLock<IdOf>,
    /// The secret of the cluster. It also makes the keys of cached answers of hooks that have no
    /// secret.
    key: hmac::Key,
    is_alone: bool,
    /// This node has requested the cached answers of another.
    has_asked: AtomicBool,
    news: Mutex<Gathered>,
    pub(crate) told: Notify,
    caches: [Mutex<Cache>; CACHES],
    voids: Mutex<Voids>,
}

impl Shared {
    /// `secret` is that of the cluster; alone a node has its own.
    pub(crate) fn new(id_of: IdOf, secret: Option<&[u8]>) -> io::Result<Self> {
        let random = SystemRandom::new();
        let mut start = [0; 6];
        random.fill(&mut start).map_err(no_random)?;
        Ok(Self {
            start: URL_SAFE_NO_PAD.encode(start),
            next_id: AtomicU64::new(0),
            key: match secret {
                Some(secret) => hmac::Key::new(hmac::HMAC_SHA256, secret),
                None => hmac::Key::generate(hmac::HMAC_SHA256, &random).map_err(no_random)?,
            },
            is_alone: secret.is_none(),
            has_asked: AtomicBool::new(secret.is_none()),
            news: Mutex::default(),
            told: Notify::new(),
            random,
            id_of: RwLock::new(id_of),
            caches: [(); CACHES].map(|()| Mutex::new(Cache::new(CACHE_BYTES_MAX / CACHES))),
            voids: Mutex::default(),
        })
    }

    /// A `webhook-id`.
    pub(crate) fn next_id(&self) -> String {
        format!("q-{}-{}", self.start, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// How to make the ids of the sockets that answers let in.
    pub(crate) fn id_of(&self) -> IdOf {
        self.id_of.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes them in another way from now on.
    pub fn identify_by(&self, id_of: IdOf) {
        *self.id_of.write().unwrap_or_else(PoisonError::into_inner) = id_of;
    }

    /// The id of a span.
    pub(crate) fn span(&self) -> u64 {
        let mut span = [0; 8];
        // Without random numbers all spans have one id: traces are worse, and questions go on.
        let _ = self.random.fill(&mut span);
        u64::from_ne_bytes(span)
    }

    /// The key of a hook's cached answers: answers of another URL are not its own.
    pub(crate) fn cache_key(&self, config: &HookConfig) -> hmac::Key {
        let secret = config.secrets.first().map_or(&self.key, |secret| secret.key());
        let text = format!("simurgh answers\0{}\0{}", config.name, config.url);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(secret, text.as_bytes()).as_ref())
    }

    /// The part of the cache for this key.
    pub(crate) fn cache(&self, key: &Key) -> MutexGuard<'_, Cache> {
        let [first, ..] = key;
        lock(&self.caches[usize::from(*first) % CACHES])
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.caches.iter().map(|cache| lock(cache).bytes()).sum()
    }

    /// Sends news to the other nodes soon, if there are any.
    pub(crate) fn tell(&self, news: impl FnOnce() -> News) {
        if !self.is_alone && lock(&self.news).add(&news()) {
            self.told.notify_one();
        }
    }

    /// Takes the gathered news, signed.
    pub(crate) fn take_news(&self) -> Vec<Vec<u8>> {
        lock(&self.news).take(&self.key)
    }

    /// Takes over what another node has [sent](crate::Cluster::send), or a [part](Self::part).
    pub fn receive(&self, bytes: &[u8]) {
        news::read(&self.key, bytes).into_iter().for_each(|news| self.take_over(news));
    }

    /// Takes over cached answers of the last start.
    pub fn load(&self, lines: &[u8]) {
        news::read_lines(lines).into_iter().for_each(|news| self.take_over(news));
    }

    /// The cached answers that count, as lines for [`load`](Self::load).
    pub fn save(&self) -> Vec<u8> {
        (0..=u8::MAX).flat_map(|first| self.lines(first)).collect()
    }

    /// Whether this is the first call: a starting node takes over the answers of one other.
    pub fn asks_first(&self) -> bool {
        !self.has_asked.swap(true, Ordering::Relaxed)
    }

    /// The cached answers whose keys begin with this byte, signed for another node.
    pub fn part(&self, first: u8) -> Vec<u8> {
        news::signed(&self.key, &self.lines(first))
    }

    fn lines(&self, first: u8) -> Vec<u8> {
        let now_ms = unix_ms(SystemTime::now());
        let cache = lock(&self.caches[usize::from(first) % CACHES]);
        let grants = cache.grants().filter(|(key, granted)| {
            key.first() == Some(&first)
                && granted.stale_until_ms > now_ms
                && !self.voids().is_void(granted)
        });
        let news: Vec<News> = grants.map(|(key, granted)| News::grant(key, granted)).collect();
        // Shards may wait for it.
        drop(cache);
        news.iter().flat_map(News::line).collect()
    }

    fn take_over(&self, news: News) {
        match news {
            News::Grant { key, granted } => {
                if let Some(key) = News::key(&key)
                    && granted.stale_until_ms > unix_ms(SystemTime::now())
                    && self.voids().admits(&granted)
                {
                    self.cache(&key).grant(key, None, granted);
                }
            }
            News::Void { of, before_ms } => self.void(Some(&of), before_ms),
        }
    }

    /// Makes grants of a user or socket id, or of all, from before `before_ms` (Unix time) void.
    pub fn void(&self, of: Option<&str>, before_ms: u64) {
        self.voids().void(of, before_ms, unix_ms(SystemTime::now()));
    }

    /// The same on all nodes, for a user or socket id.
    pub fn void_everywhere(&self, of: &str, before_ms: u64) {
        self.void(Some(of), before_ms);
        self.tell(|| News::Void { of: of.to_owned(), before_ms });
    }

    pub(crate) fn voids(&self) -> MutexGuard<'_, Voids> {
        lock(&self.voids)
    }
}

/// Locks, whether or not another thread panicked meanwhile: each change is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_random(_: Unspecified) -> io::Error {
    io::Error::other("the system gives no random numbers")
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    ms(since)
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
