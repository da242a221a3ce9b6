//! Writes receipts of many requests in one commit. SQLite has one writer, and
//! a commit waits for the disk: requests that arrive while one is under way
//! share the next.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox_core::gate::{Admission, AdmitRequest, Pass, Receipts as _, Reply};
use oncebox_core::{Error, Kind, Result, Store as _, Timestamp};
use sqlx::sqlite::SqliteConnection;
use tokio::sync::oneshot;

use super::SqliteStore;
use super::error::failed;

/// The most that share a commit.
const BATCH: usize = 256;
/// How long a commit is put off while others keep coming, and after how many turns of everybody else without anybody new
/// it is not. A commit takes longer.
const GATHER: Duration = Duration::from_micros(300);
const TURNS: usize = 32;
/// The largest reply that is sealed along with others: they are put into one piece of memory.
const SMALL: usize = 16 << 10;
/// The most of those.
const AT_ONCE: usize = 64;

/// Forgets that a request was admitted.
pub(super) const WITHDRAW: &str = include_str!("sql/receipt_withdraw.sql");

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

    /// Tells who waits. A request that was admitted and does not wait any more is not run by anybody.
    fn answer(&self, answer: oneshot::Sender<Result<Done>>, done: Result<Done>) {
        if let Err(Ok(Done::Admitted(Admission::Proceed(pass)))) = answer.send(done) {
            self.desk().jobs.push((Errand::End(WITHDRAW, pass), oneshot::channel().0));
        }
    }

    /// Lets those come who are about to: whoever was told by the last commit may be on the way with what follows from
    /// it, and would miss this one. Nobody waits who was alone in the last one.
    async fn gather(&self, company: usize) {
        let started = Instant::now();
        let (mut here, mut turns_alone) = (0, 0);
        tokio::task::yield_now().await;
        while company > 1 && here < company && turns_alone < TURNS && started.elapsed() < GATHER {
            tokio::task::yield_now().await;
            let jobs = self.desk().jobs.len();
            turns_alone = if jobs > here { 0 } else { turns_alone + 1 };
            here = jobs;
        }
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
        let mut company = 1;
        loop {
            attendance.clerk.gather(company).await;
            let jobs = attendance.clerk.next();
            company = jobs.len();
            if jobs.is_empty() {
                // Nobody is missed: who comes from here on finds the desk unattended.
                attendance.is_over = true;
                return;
            }
            let (errands, answers): (Vec<Errand>, Vec<_>) = jobs.into_iter().unzip();
            match self.write(&errands).await {
                Ok(done) => {
                    for (answer, done) in answers.into_iter().zip(done) {
                        attendance.clerk.answer(answer, Ok(done));
                    }
                }
                // One that cannot be written spoils the transaction of all: each by itself, then. If the
                // commit is what failed, nobody knows about any of them.
                Err(error) if errands.len() > 1 && error.kind() != Kind::CommitUnknown => {
                    for (errand, answer) in errands.iter().zip(answers) {
                        let alone = self.write(std::slice::from_ref(errand)).await;
                        let alone = alone.map(|mut done| done.pop().unwrap_or(Done::Written));
                        attendance.clerk.answer(answer, alone);
                    }
                }
                Err(error) => {
                    for answer in answers {
                        attendance.clerk.answer(answer, Err(Error::new(error.kind(), error.chain())));
                    }
                }
            }
        }
    }

    /// A statement for all of a kind: each is a message to the driver's thread and back.
    async fn write(&self, errands: &[Errand]) -> Result<Vec<Done>> {
        let mut tx = self.begin().await?;
        let (mut done, mut seals, mut admissions) =
            (Vec::with_capacity(errands.len()), Vec::new(), Vec::new());
        for (place, errand) in errands.iter().enumerate() {
            match errand {
                Errand::Admit(request, now) => admissions.push((place, request, *now)),
                Errand::Seal(pass, reply) if reply.size() > SMALL => {
                    done.push((place, was_sealed(self.seal_in(&mut tx, pass, reply).await)?));
                }
                Errand::Seal(pass, reply) => seals.push((place, pass, reply)),
                Errand::End(text, pass) => {
                    self.end_on(&mut tx, text, pass).await?;
                    done.push((place, Done::Written));
                }
            }
        }
        // Seals first: a copy that arrives with one is told the reply.
        for seals in seals.chunks(AT_ONCE) {
            done.extend(self.seal_all(&mut tx, seals).await?);
        }
        if !admissions.is_empty() {
            done.extend(self.admit_all(&mut tx, &admissions).await?);
        }
        self.commit(tx).await?;
        done.sort_unstable_by_key(|(place, _)| *place);
        Ok(done.into_iter().map(|(_, done)| done).collect())
    }

    async fn seal_all(
        &self,
        tx: &mut SqliteConnection,
        seals: &[(usize, &Pass, &Reply)],
    ) -> Result<Vec<(usize, Done)>> {
        let (mut keys, mut replies, mut places) = (Vec::new(), Vec::new(), Vec::new());
        // SQL counts from one.
        let mut put = |bytes: &[u8]| {
            let place = replies.len() + 1;
            replies.extend_from_slice(bytes);
            (place, bytes.len())
        };
        for (_, pass, reply) in seals {
            keys.extend_from_slice(&pass.key.scope);
            keys.extend_from_slice(&pass.key.key);
            let (head, head_size) = put(&reply.head());
            let body = reply.body.as_deref().map(&mut put);
            places.push(match body {
                Some((body, size)) => format!("[{},{head},{head_size},{body},{size}]", pass.token),
                None => format!("[{},{head},{head_size},null,null]", pass.token),
            });
        }
        let sealed: Vec<(Vec<u8>, i64)> = sqlx::query_as(self.sql(include_str!("sql/receipt_seal_all.sql")))
            .bind(keys)
            .bind(replies)
            .bind(format!("[{}]", places.join(",")))
            .fetch_all(tx)
            .await
            .map_err(failed("cannot seal receipts"))?;
        let sealed: HashSet<(&[u8], i64)> =
            sealed.iter().map(|(key, token)| (key.as_slice(), *token)).collect();
        let end = |pass: &Pass| match sealed.contains(&(pass.key.key.as_slice(), pass.token)) {
            true => Done::Written,
            false => Done::Fenced,
        };
        Ok(seals.iter().map(|(place, pass, _)| (*place, end(pass))).collect())
    }
}

fn was_sealed(sealed: Result<()>) -> Result<Done> {
    match sealed {
        Err(error) if error.kind() == Kind::Fenced => Ok(Done::Fenced),
        sealed => sealed.map(|()| Done::Written),
    }
}
