//! The objects of all clusters: in memory for readers, on disk before anyone is told that they were written.
//!
//! A writer states what it expects to find ([`Expect`]). Whoever finds nobody at work carries out all waiting writes as one
//! batch, in order, as one transaction (so that a hundred waiting writers cost one flush of the disk), and only then
//! makes them visible. Readers never wait for the disk.

pub(crate) mod disk;
pub(crate) mod object;
mod plan;
pub(crate) mod table;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tokio::sync::{oneshot, watch};

use self::disk::{Contents, Disk};
use self::object::{Key, Stored};
use self::plan::{Effect, Plan};
use self::table::{Change, Table, Window};
use crate::agenda::Agenda;
use crate::clock::Clock;
use crate::options::{OpenError, Options, Store};
use crate::registry::Registry;

/// What a writer expects to find in the place where it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nothing.
    Absent,
    /// The object at this revision.
    Revision(u64),
}

/// An object whose presence (and that it is not being deleted) a new object depends on: its namespace, its definition.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    /// Table of the object.
    pub(crate) table: String,
    /// Its key.
    pub(crate) key: Key,
}

/// One write of one object.
#[derive(Debug)]
pub(crate) struct Write {
    /// Cluster.
    pub(crate) cluster: String,
    /// Table: the plural, with the group unless it is core.
    pub(crate) table: String,
    /// Key.
    pub(crate) key: Key,
    /// What must be there.
    pub(crate) expect: Expect,
    /// What else must be there.
    pub(crate) guards: Vec<Guard>,
    /// The object; none deletes.
    pub(crate) object: Option<Value>,
}

/// Why a write did not happen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// Something else was there than was expected: read again, decide again.
    #[error("something else was written first")]
    Raced,
    /// The cluster does not exist.
    #[error("the cluster does not exist")]
    NoCluster,
    /// The disk failed; nothing was written, and nothing will be until the server is started again.
    #[error("the store cannot be written: {0}")]
    Disk(String),
}

/// What can be asked of the store beside writes of objects.
#[derive(Debug)]
enum Task {
    Write(Write),
    Create { cluster: String, authority: Vec<u8> },
    Drop { cluster: String },
    Setting { name: String, bytes: Vec<u8> },
}

/// What a task came to: the object as written (as last seen, for a deletion), or nothing to show.
type Outcome = Result<Option<Arc<Stored>>, Refused>;

/// One logical cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its identity: a cluster made again under the same name has another.
    pub(crate) uid: Arc<str>,
    /// Nothing that happened before this revision can be told.
    born: u64,
    /// Kinds that it serves.
    pub(crate) registry: Arc<Registry>,
    /// What the background loops have to look at.
    pub(crate) agenda: Agenda,
    tables: HashMap<String, Table>,
    window: Window,
}

impl Cluster {
    fn new(uid: &str, born: u64, window: Window) -> Self {
        Self {
            uid: uid.into(),
            born,
            registry: Registry::builtin(),
            agenda: Agenda::default(),
            tables: HashMap::new(),
            window,
        }
    }

    /// A table; none when nothing was ever written to it.
    pub(crate) fn table(&self, name: &str) -> Option<&Table> {
        self.tables.get(name)
    }

    /// One object.
    pub(crate) fn get(&self, table: &str, key: &Key) -> Option<&Arc<Stored>> {
        self.tables.get(table)?.get(key)
    }

    /// The oldest revision from which the changes of a table without history are known.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// All tables that hold anything.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table))
    }

    fn table_mut(&mut self, name: &str) -> &mut Table {
        let (born, window) = (self.born, self.window);
        self.tables
            .entry(name.to_owned())
            .or_insert_with(|| Table::new(born, window))
    }

    fn apply(&mut self, table: &str, change: Arc<Change>) {
        self.agenda.observe(table, &change);
        self.table_mut(table).apply(change.clone());
        if table == crate::registry::DEFINITIONS {
            self.registry = self.registry.with(&change);
            if change.deleted {
                self.tables.remove(&change.object.key.name);
            }
        }
    }
}

/// Everything that readers see.
#[derive(Debug)]
pub(crate) struct State {
    /// The last revision that is visible.
    pub(crate) revision: u64,
    clusters: HashMap<String, Cluster>,
}

impl State {
    /// One cluster.
    pub(crate) fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.get(name)
    }

    /// All clusters.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = (&str, &Cluster)> {
        self.clusters
            .iter()
            .map(|(name, cluster)| (name.as_str(), cluster))
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<(Task, oneshot::Sender<Outcome>)>,
    /// Whether somebody is at work, who will see what is added to `waiting`.
    busy: bool,
}

/// The store.
pub(crate) struct Storage {
    state: RwLock<State>,
    queue: Mutex<Queue>,
    disk: Disk,
    /// Whether a commit reaches a disk, and so must not hold up the runtime.
    slow: bool,
    settings: Mutex<HashMap<String, Vec<u8>>>,
    window: Window,
    clock: Clock,
    pulse: watch::Sender<u64>,
}

impl Storage {
    /// Opens the store and reads all of it.
    pub(crate) fn open(options: &Options) -> Result<Arc<Self>, OpenError> {
        let window = Window {
            changes: options.window.max(1),
            bytes: 16 << 20,
        };
        let (disk, contents) = Disk::open(&options.store)?;
        let Contents {
            revision,
            clusters,
            objects,
            settings,
        } = contents;
        let mut state = State {
            revision,
            clusters: HashMap::new(),
        };
        for (name, uid) in clusters {
            state.clusters.insert(name, Cluster::new(&uid, revision, window));
        }
        for (cluster, table, object) in objects {
            if let Some(cluster) = state.clusters.get_mut(&cluster) {
                let object = Arc::new(object);
                cluster.agenda.load(&table, &object);
                if table == crate::registry::DEFINITIONS {
                    cluster.registry = cluster.registry.with_definition(&object);
                }
                cluster.table_mut(&table).load(object);
            }
        }
        Ok(Arc::new(Self {
            state: RwLock::new(state),
            queue: Mutex::new(Queue::default()),
            disk,
            slow: matches!(options.store, Store::File(_)),
            settings: Mutex::new(settings.into_iter().collect()),
            window,
            clock: options.clock.clone(),
            pulse: watch::Sender::new(revision),
        }))
    }

    /// Lets go of the file; what is written after this is refused.
    pub(crate) fn close(&self) {
        self.disk.close();
    }

    /// What is visible now. Not to be held across an await.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("nobody panics while holding the state")
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("nobody panics while holding the state")
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics while holding the queue")
    }

    /// One object.
    pub(crate) fn get(&self, cluster: &str, table: &str, key: &Key) -> Option<Arc<Stored>> {
        self.read().cluster(cluster)?.get(table, key).cloned()
    }

    /// Kinds that a cluster serves.
    pub(crate) fn registry(&self, cluster: &str) -> Option<Arc<Registry>> {
        Some(self.read().cluster(cluster)?.registry.clone())
    }

    /// Wakes at every change of anything.
    pub(crate) fn pulse(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    /// Lets a cluster's background loops take what they have to look at.
    pub(crate) fn with_agenda<T>(&self, cluster: &str, ask: impl FnOnce(&mut Agenda) -> T) -> Option<T> {
        Some(ask(&mut self.state_mut().clusters.get_mut(cluster)?.agenda))
    }

    /// Wakes at every change of a table, and ends with it.
    pub(crate) fn subscribe(&self, cluster: &str, table: &str) -> Option<watch::Receiver<u64>> {
        if let Some(found) = self.read().cluster(cluster)?.table(table) {
            return Some(found.subscribe());
        }
        Some(
            self.state_mut()
                .clusters
                .get_mut(cluster)?
                .table_mut(table)
                .subscribe(),
        )
    }

    /// A setting of the server itself, kept beside the objects.
    pub(crate) fn setting(&self, name: &str) -> Option<Vec<u8>> {
        self.settings
            .lock()
            .expect("nobody panics while holding the settings")
            .get(name)
            .cloned()
    }

    /// Keeps a setting. Waits for the disk: for use while opening.
    pub(crate) fn keep_setting(&self, name: &str, bytes: Vec<u8>) -> Result<(), Refused> {
        self.work_on(Task::Setting {
            name: name.to_owned(),
            bytes,
        })
        .map(|_| ())
    }

    /// Writes one object. Waits for the disk: for use while opening.
    pub(crate) fn write_now(&self, write: Write) -> Result<(), Refused> {
        self.work_on(Task::Write(write)).map(|_| ())
    }

    /// Creates a cluster; `Raced` when it exists. Waits for the disk: for use while opening.
    pub(crate) fn create_cluster_now(&self, cluster: &str, authority: Vec<u8>) -> Result<(), Refused> {
        self.work_on(Task::Create {
            cluster: cluster.to_owned(),
            authority,
        })
        .map(|_| ())
    }

    /// Creates a cluster; `Raced` when it exists.
    pub(crate) async fn create_cluster(
        self: &Arc<Self>,
        cluster: &str,
        authority: Vec<u8>,
    ) -> Result<(), Refused> {
        self.submit(Task::Create {
            cluster: cluster.to_owned(),
            authority,
        })
        .await
        .map(|_| ())
    }

    /// Deletes a cluster and all in it; `NoCluster` when there is none.
    pub(crate) async fn delete_cluster(self: &Arc<Self>, cluster: &str) -> Result<(), Refused> {
        self.submit(Task::Drop {
            cluster: cluster.to_owned(),
        })
        .await
        .map(|_| ())
    }

    /// Writes one object, and returns it as it was written (as last seen, for a deletion).
    pub(crate) async fn write(self: &Arc<Self>, write: Write) -> Result<Arc<Stored>, Refused> {
        self.submit(Task::Write(write)).await?.ok_or(Refused::Raced)
    }

    /// Puts a task in the queue, sees to it that somebody works on the queue, and waits.
    async fn submit(self: &Arc<Self>, task: Task) -> Outcome {
        let (reply, answer) = oneshot::channel();
        if self.enqueue(task, reply) {
            let shift = Shift {
                storage: self.clone(),
                is_over: false,
            };
            if self.slow {
                // While a blocking task runs, the clock of a test that stands still does not jump ahead either.
                drop(tokio::task::spawn_blocking(move || shift.work()));
            } else {
                shift.work();
            }
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Refused::Disk("the writer was stopped".to_owned())))
    }

    /// Works on the queue until a task of one's own is done.
    fn work_on(&self, task: Task) -> Outcome {
        let (reply, mut answer) = oneshot::channel();
        self.commit(vec![(task, reply)]);
        answer
            .try_recv()
            .unwrap_or_else(|_| Err(Refused::Disk("the writer was stopped".to_owned())))
    }

    /// Whether the caller is to work on the queue.
    fn enqueue(&self, task: Task, reply: oneshot::Sender<Outcome>) -> bool {
        let mut queue = self.queue();
        queue.waiting.push((task, reply));
        !std::mem::replace(&mut queue.busy, true)
    }

    /// Carries out a batch: plan, write, show, answer. Only one thread at a time does this.
    fn commit(&self, batch: Vec<(Task, oneshot::Sender<Outcome>)>) {
        let mut plan = Plan::new(self.read().revision, (self.clock)().as_second());
        let mut answers = Vec::with_capacity(batch.len());
        {
            let state = self.read();
            for (task, reply) in batch {
                answers.push((reply, plan.add(&state, task)));
            }
        }
        if !plan.rows.is_empty()
            && let Err(error) = self.disk.commit(&plan.rows, plan.revision)
        {
            tracing::error!(%error, "the store cannot be written");
            let refused = error.to_string();
            for (reply, _) in answers {
                let _ = reply.send(Err(Refused::Disk(refused.clone())));
            }
            return;
        }
        self.show(plan);
        for (reply, outcome) in answers {
            // Whoever asked may be gone; what is written stays written.
            let _ = reply.send(outcome);
        }
    }

    /// Makes visible what is on disk.
    fn show(&self, plan: Plan) {
        let mut state = self.state_mut();
        let state = &mut *state;
        let mut touched = BTreeSet::new();
        for effect in plan.effects {
            match effect {
                Effect::Change {
                    cluster,
                    table,
                    change,
                } => {
                    if let Some(found) = state.clusters.get_mut(&cluster) {
                        found.apply(&table, change);
                        touched.insert((cluster, table));
                    }
                }
                Effect::Create { cluster, uid } => {
                    state
                        .clusters
                        .insert(cluster, Cluster::new(&uid, plan.revision, self.window));
                }
                Effect::Drop { cluster } => {
                    state.clusters.remove(&cluster);
                    self.forget_setting(&authority_setting(&cluster));
                }
                Effect::Setting { name, bytes } => {
                    self.settings
                        .lock()
                        .expect("nobody panics while holding the settings")
                        .insert(name, bytes);
                }
            }
        }
        state.revision = plan.revision;
        for (cluster, table) in touched {
            if let Some(table) = state
                .clusters
                .get(&cluster)
                .and_then(|cluster| cluster.table(&table))
            {
                table.announce(plan.revision);
            }
        }
        self.pulse.send_replace(plan.revision);
    }

    fn forget_setting(&self, name: &str) {
        self.settings
            .lock()
            .expect("nobody panics while holding the settings")
            .remove(name);
    }
}

/// Name of the setting that holds the authority for the clients of a cluster.
pub(crate) fn authority_setting(cluster: &str) -> String {
    format!("{cluster}\0authority")
}

/// Someone's turn to work on the queue. It ends once only: after that, the next one's may have begun.
struct Shift {
    storage: Arc<Storage>,
    is_over: bool,
}

impl Shift {
    fn work(mut self) {
        loop {
            let batch = {
                let mut queue = self.storage.queue();
                if queue.waiting.is_empty() {
                    queue.busy = false;
                    self.is_over = true;
                    return;
                }
                std::mem::take(&mut queue.waiting)
            };
            let mut batch = batch.into_iter().peekable();
            while let Some(first) = batch.next() {
                // Writes go together; whatever makes or drops a cluster goes alone.
                let mut together = vec![first];
                while matches!(together[0].0, Task::Write(_))
                    && let Some(next) = batch.next_if(|(task, _)| matches!(task, Task::Write(_)))
                {
                    together.push(next);
                }
                self.storage.commit(together);
            }
        }
    }
}

impl Drop for Shift {
    /// A runtime that is shut down drops a turn before it began.
    fn drop(&mut self) {
        if !self.is_over {
            self.storage.queue().busy = false;
        }
    }
}
