//! Writes new objects. The content is written to a draft, a file with another name. A rename makes the draft an object. An upload is
//! written in parts.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ironmap::Queue;
use ironmap::fs::Stat;

use crate::failure::Failure;
use crate::store::{Mode, Objects, STAGE, Shared, check_path, stat, tag};
use crate::tree::{Draft, parent};

/// A draft: the file of a new object before it gets its final name. If the draft has not become an object, the drop of this value removes
/// it.
pub(crate) struct Staged {
    objects: Arc<Objects>,
    path: String,
    pub(crate) draft: Box<dyn Draft>,
    /// Whether the draft was renamed or removed.
    published: bool,
}

impl Staged {
    pub(crate) fn new(objects: &Arc<Objects>) -> Result<Self, Failure> {
        loop {
            let number = objects.next.fetch_add(1, Ordering::Relaxed);
            // The name ends with `#` and digits, so that `LocalFileSystem` does not list it.
            let path = format!("{STAGE}/{}-{number}#1", std::process::id());
            match objects.tree.draft(&path) {
                Ok(draft) => {
                    let objects = Arc::clone(objects);
                    return Ok(Self { objects, path, draft, published: false });
                }
                Err(error) => match error.kind() {
                    // A process in another container can have the same process ID and use this name, so the next number is tried.
                    io::ErrorKind::AlreadyExists => {}
                    io::ErrorKind::NotFound => objects.tree.create_dirs(STAGE)?,
                    _ => return Err(error.into()),
                },
            }
        }
    }

    fn discard(mut self) -> Result<(), Failure> {
        self.published = true;
        Ok(self.objects.tree.remove(&self.path)?)
    }

    /// Makes an object of the draft. First the content becomes durable. Then the draft gets its final name by a rename, and this name
    /// becomes durable.
    pub(crate) fn publish(
        mut self,
        queue: &mut Queue,
        to: &str,
        mode: &Mode,
    ) -> Result<Stat, Failure> {
        let objects = Arc::clone(&self.objects);
        self.draft.sync(queue)?;
        let lock = objects.tree.lock()?;
        if let Mode::Update(wanted) = mode {
            let found = match stat(&*objects.tree, to) {
                Ok(found) => tag(&found),
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Failure::Changed(format!("the object does not exist: {error}")));
                }
                Err(failure) => return Err(failure),
            };
            if found != *wanted {
                return Err(Failure::Changed(format!(
                    "the object has the tag {found}, not {wanted}"
                )));
            }
        }
        objects.rename_into(&self.path, to, !matches!(mode, Mode::Create))?;
        self.published = true;
        let stat = stat(&*objects.tree, to)?;
        drop(lock);
        objects.tree.sync_dirs(&[parent(to)])?;
        Ok(stat)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // If this call fails, the draft remains. The next store of this directory removes it.
            let _ = self.objects.tree.remove(&self.path);
        }
    }
}

/// An object that is written in parts.
pub(crate) struct Upload {
    shared: Arc<Shared>,
    to: String,
    staged: Option<Arc<Staged>>,
    /// The total length of the parts whose writes have begun. `written` is the total length of the parts whose writes have completed.
    begun: u64,
    written: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) async fn new(shared: &Arc<Shared>, to: &str) -> Result<Self, Failure> {
        check_path(to)?;
        let staged = shared.write(|objects, _| Staged::new(objects)).await?;
        let (staged, written) = (Some(Arc::new(staged)), Arc::default());
        Ok(Self { shared: Arc::clone(shared), to: to.to_owned(), staged, begun: 0, written })
    }

    /// Writes the next part of the object. Its position is the end of the previous part. Parts can be written in any order.
    pub(crate) fn part(
        &mut self,
        content: Vec<Bytes>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let len: u64 = content.iter().map(|bytes| bytes.len() as u64).sum();
        let (at, staged, written) = (self.begun, self.staged.clone(), Arc::clone(&self.written));
        self.begun += len;
        let shared = Arc::clone(&self.shared);
        async move {
            let staged = staged.ok_or_else(ended)?;
            let write = move |_: &Arc<Objects>, queue: &mut Queue| {
                staged.draft.write_at(queue, at, &content)?;
                written.fetch_add(len, Ordering::SeqCst);
                Ok(())
            };
            shared.write(write).await
        }
    }

    /// Completes the upload, which makes the object visible.
    pub(crate) async fn complete(&mut self) -> Result<Stat, Failure> {
        let staged = self.staged.take().ok_or_else(ended)?;
        let written = self.written.load(Ordering::SeqCst);
        // The task of a part owns a reference to the draft until it has counted the part's length. As long as such a task runs,
        // `into_inner` returns `None`.
        let staged =
            Arc::into_inner(staged).filter(|_| written == self.begun).ok_or_else(|| {
                let what =
                    format!("{}: only {written} of {} bytes were written", self.to, self.begun);
                io::Error::other(what)
            })?;
        let to = self.to.clone();
        self.shared.write(move |_, queue| staged.publish(queue, &to, &Mode::Overwrite)).await
    }

    /// Ends the upload and removes all parts.
    pub(crate) async fn abort(&mut self) -> Result<(), Failure> {
        let staged = self.staged.take().ok_or_else(ended)?;
        let discard = move |_: &Arc<Objects>, _: &mut Queue| match Arc::into_inner(staged) {
            Some(staged) => staged.discard(),
            // A part is still in flight. When it ends, the draft is removed.
            None => Ok(()),
        };
        self.shared.write(discard).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.shared.drop_later(staged);
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the upload is already completed or aborted")
}
