//! Notices to the application of a hook.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use simurgh_notices::{Batch, Outcome};
use tokio::time::timeout;

use super::Hook;
use super::record::Matter;
use crate::answer::outcome::{retry_after, unix_s};
use crate::breaker::BreakerState;
use crate::notice_json::to_data;
use crate::request::{Draft, NOTICES};

/// So many characters of an answer are kept with a dead letter.
const SHOWN: usize = 200;

impl Hook {
    /// Sends a batch of a partition. Also returns the pause that the application asks for.
    pub(crate) async fn notify(&self, partition: u8, batch: &Batch) -> (Outcome, Option<Duration>) {
        if self.state() == BreakerState::Open {
            return (Outcome::Failed(0, "questions to it fail".into()), None);
        }
        let time = UNIX_EPOCH + Duration::from_millis(batch.at_ms);
        let draft = Draft {
            template: &self.template,
            path: NOTICES,
            id: &batch.id,
            body: self.template.body("notices", &to_data(partition, batch), time),
            forwarded: &[],
            traceparent: None,
        };
        let sending = self.client.send(|| draft.request(unix_s(SystemTime::now())));
        let (status, body, asked) = match timeout(self.config.total_timeout, sending).await {
            Ok(Ok(response)) => {
                self.compare_clocks(&response, SystemTime::now());
                let asked = response.retry_after.as_deref();
                let asked = asked.and_then(|text| retry_after(text, SystemTime::now()));
                let body = response.body.unwrap_or_default();
                (
                    response.status,
                    String::from_utf8_lossy(&body).chars().take(SHOWN).collect(),
                    asked,
                )
            }
            Ok(Err(error)) => (0, error.to_string(), None),
            Err(_) => (0, format!("no answer within {:?}", self.config.total_timeout), None),
        };
        // It closes connections that are idle for too long.
        self.wake.notify_one();
        if (200..=299).contains(&status) {
            return (Outcome::Accepted, None);
        }
        if self.record().is_due(Matter::Notices, self.now_ms()) {
            tracing::warn!(hook = self.name(), status, answer = body, "notices are not accepted");
        }
        let outcome = match status {
            0 | 410 | 429 | 500.. => Outcome::Failed(status, body.into()),
            _ => Outcome::Refused(status, body.into()),
        };
        (outcome, asked)
    }
}
