//! Writes receipts of many requests in one commit. SQLite has one writer, and
//! a commit waits for the disk: requests that arrive while one is under way
//! share the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncebox_core::gate::{Admission, AdmitRequest, Pass, Receipts as _, Reply};
use oncebox_core::{Error, Kind, Result, Store as _, Timestamp};
use sqlx::sqlite::SqliteConnection;
use tokio::sync::oneshot;

use super::SqliteStore;

/// The most that share a commit.
const BATCH: usize = 256;

/// Something to be written.
pub(super) enum Errand {
    Admit(AdmitRequest, Option<Timestamp>),
    Seal(Pass, Reply),
    /// The statement that ends a receipt otherwise.
    End(&'static str, Pass),
}

/// What came of it.
pub(super) enum Done {
    Admitted(Admission),
    Written,
    /// Somebody else has the key by now.
    Fenced,
}

type Job = (Errand, oneshot::Sender<Result<Done>>);

#[derive(Default)]
struct Desk {
    jobs: Vec<Job>,
    is_attended: bool,
}

/// Those who wait for a commit, of all clones of a store.
#[derive(Clone, Default)]
pub(super) struct Clerk(Arc<Mutex<Desk>>);

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clerk")
    }
}

impl Clerk {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Vec<Job> {
        let mut desk = self.desk();
        let count = desk.jobs.len().min(BATCH);
        let jobs: Vec<Job> = desk.jobs.drain(..count).collect();
        desk.is_attended = !jobs.is_empty();
        jobs
    }
}

/// Attends the desk; if its runtime ends under it, the next errand calls another.
struct Attendance {
    clerk: Clerk,
    /// It has left the desk in order; by now another may be there.
    is_over: bool,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if !self.is_over {
            let mut desk = self.clerk.desk();
            desk.is_attended = false;
            // Who waits is told that nobody will come.
            desk.jobs.clear();
        }
    }
}

impl SqliteStore {
    /// Has something written, together with what others want.
    pub(super) async fn run(&self, errand: Errand) -> Result<Done> {
        let (answer, answered) = oneshot::channel();
        let is_attended = {
            let mut desk = self.clerk.desk();
            desk.jobs.push((errand, answer));
            std::mem::replace(&mut desk.is_attended, true)
        };
        if !is_attended {
            let store = self.clone();
            // From here on: a runtime that ends before its first step drops it, too.
            let attendance = Attendance { clerk: self.clerk.clone(), is_over: false };
            // A task of its own: whoever waits may go away.
            tokio::spawn(async move { store.attend(attendance).await });
        }
        let gone = |_| Err(Error::new(Kind::Unavailable, "the writer of receipts is gone"));
        answered.await.unwrap_or_else(gone)
    }

    async fn attend(self, mut attendance: Attendance) {
        loop {
            let jobs = attendance.clerk.next();
            if jobs.is_empty() {
                // Nobody is missed: who comes from here on finds the desk unattended.
                attendance.is_over = true;
                return;
            }
            let (errands, answers): (Vec<Errand>, Vec<_>) = jobs.into_iter().unzip();
            match self.write(&errands).await {
                Ok(done) => {
                    for (answer, done) in answers.into_iter().zip(done) {
                        answer.send(Ok(done)).ok();
                    }
                }
                // One that cannot be written spoils the transaction of all: each by itself, then. If the
                // commit is what failed, nobody knows about any of them.
                Err(error) if errands.len() > 1 && error.kind() != Kind::CommitUnknown => {
                    for (errand, answer) in errands.iter().zip(answers) {
                        let alone = self.write(std::slice::from_ref(errand)).await;
                        answer.send(alone.map(|mut done| done.pop().unwrap_or(Done::Written))).ok();
                    }
                }
                Err(error) => {
                    for answer in answers {
                        answer.send(Err(Error::new(error.kind(), error.chain()))).ok();
                    }
                }
            }
        }
    }

    async fn write(&self, errands: &[Errand]) -> Result<Vec<Done>> {
        let mut tx = self.begin().await?;
        let mut done = Vec::with_capacity(errands.len());
        for errand in errands {
            done.push(self.write_one(&mut tx, errand).await?);
        }
        self.commit(tx).await?;
        Ok(done)
    }

    async fn write_one(&self, tx: &mut SqliteConnection, errand: &Errand) -> Result<Done> {
        match errand {
            Errand::Admit(request, now) => self.admit_in(tx, request, *now).await.map(Done::Admitted),
            Errand::Seal(pass, reply) => match self.seal_in(tx, pass, reply).await {
                Err(error) if error.kind() == Kind::Fenced => Ok(Done::Fenced),
                sealed => sealed.map(|()| Done::Written),
            },
            Errand::End(text, pass) => self.end_on(tx, text, pass).await.map(|()| Done::Written),
        }
    }
}
