//! The database: a folder with a file for each room, one post on each line.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::fs::{self, OpenOptions};
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use crate::{NewMsg, Post};

/// A cheap clone for each channel.
#[derive(Clone)]
pub struct Db {
    folder: Arc<Path>,
    /// Locked for each write: a post's id is its position in the file.
    writing: Arc<Mutex<()>>,
}

impl Db {
    /// Opens a folder, and creates missing rooms in it. Fails if the folder or a file cannot be
    /// created, or a room's name does not consist of letters and digits.
    pub fn open<R: AsRef<str>>(
        folder: &Path,
        rooms: impl IntoIterator<Item = R>,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let db = Self { folder: folder.into(), writing: Arc::default() };
        for room in rooms {
            let path = db.path(room.as_ref()).ok_or(io::ErrorKind::InvalidInput)?;
            std::fs::OpenOptions::new().append(true).create(true).open(path)?;
        }
        Ok(db)
    }

    /// The file of a room; clients choose topics, but must not choose file names.
    fn path(&self, room: &str) -> Option<PathBuf> {
        let is_name = !room.is_empty() && room.chars().all(|it| it.is_ascii_alphanumeric());
        is_name.then(|| self.folder.join(format!("{room}.jsonl")))
    }

    pub(crate) async fn has(&self, room: &str) -> io::Result<bool> {
        match self.path(room) {
            Some(path) => fs::try_exists(path).await,
            None => Ok(false),
        }
    }

    pub(crate) async fn post(&self, room: &str, NewMsg { body }: NewMsg) -> io::Result<Post> {
        let path = self.path(room).ok_or(io::ErrorKind::NotFound)?;
        let _writing = self.writing.lock().await;
        let mut file = OpenOptions::new().append(true).open(path).await?;
        let post = Post { id: file.metadata().await?.len(), body };
        let line = serde_json::to_string(&post)? + "\n";
        file.write_all(line.as_bytes()).await?;
        file.flush().await?;
        Ok(post)
    }
}
