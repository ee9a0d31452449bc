//! A batch of tasks on its way to the disk: what each comes to, given those before it.

use std::collections::HashMap;
use std::sync::Arc;

use super::disk::Row;
use super::object::{Key, Stored};
use super::table::Change;
use super::{Expect, Outcome, Refused, State, Task, Write, authority_setting};

/// What becomes visible once the rows are on disk.
#[derive(Debug)]
pub(super) enum Effect {
    Change {
        cluster: String,
        table: String,
        change: Arc<Change>,
    },
    Create {
        cluster: String,
        uid: String,
    },
    Drop {
        cluster: String,
    },
    Setting {
        name: String,
        bytes: Vec<u8>,
    },
}

/// The batch.
#[derive(Debug)]
pub(super) struct Plan {
    /// The last revision given out.
    pub(super) revision: u64,
    /// What to write.
    pub(super) rows: Vec<Row>,
    /// What to show then.
    pub(super) effects: Vec<Effect>,
    /// What the batch has changed so far; none for what it deleted.
    changed: HashMap<(String, String, Key), Option<Arc<Stored>>>,
    now: i64,
}

impl Plan {
    pub(super) fn new(revision: u64, now: i64) -> Self {
        Self {
            revision,
            rows: Vec::new(),
            effects: Vec::new(),
            changed: HashMap::new(),
            now,
        }
    }

    /// Adds a task, and says what it comes to if the disk does its part.
    pub(super) fn add(&mut self, state: &State, task: Task) -> Outcome {
        match task {
            Task::Write(write) => self.write(state, write).map(Some),
            Task::Create { cluster, authority } => {
                if state.cluster(&cluster).is_some() {
                    return Err(Refused::Raced);
                }
                let uid = uuid::Uuid::new_v4().to_string();
                self.revision += 1;
                self.rows.push(Row::Cluster {
                    name: cluster.clone(),
                    uid: uid.clone(),
                });
                self.setting(authority_setting(&cluster), authority);
                self.effects.push(Effect::Create { cluster, uid });
                Ok(None)
            }
            Task::Drop { cluster } => {
                if state.cluster(&cluster).is_none() {
                    return Err(Refused::NoCluster);
                }
                self.revision += 1;
                self.rows.push(Row::DropCluster {
                    name: cluster.clone(),
                });
                self.effects.push(Effect::Drop { cluster });
                Ok(None)
            }
            Task::Setting { name, bytes } => {
                self.setting(name, bytes);
                Ok(None)
            }
        }
    }

    fn setting(&mut self, name: String, bytes: Vec<u8>) {
        self.rows.push(Row::Setting {
            name: name.clone(),
            bytes: bytes.clone(),
        });
        self.effects.push(Effect::Setting { name, bytes });
    }

    fn write(&mut self, state: &State, write: Write) -> Result<Arc<Stored>, Refused> {
        let Write {
            cluster,
            table,
            key,
            expect,
            guards,
            object,
        } = write;
        if state.cluster(&cluster).is_none() {
            return Err(Refused::NoCluster);
        }
        let old = self.current(state, &cluster, &table, &key);
        let is_as_expected = match (expect, &old) {
            (Expect::Absent, found) => found.is_none(),
            (Expect::Revision(revision), found) => {
                found.as_ref().is_some_and(|found| found.revision == revision)
            }
        };
        let is_guarded = guards.iter().all(|guard| {
            self.current(state, &cluster, &guard.table, &guard.key)
                .is_some_and(|found| !found.meta.deleting)
        });
        if !is_as_expected || !is_guarded {
            return Err(Refused::Raced);
        }
        self.revision += 1;
        let deleted = object.is_none();
        let object = match (object, &old) {
            (Some(object), _) => Stored::freeze(key.clone(), object, self.revision, self.now),
            (None, Some(old)) => old.at(self.revision),
            (None, None) => return Err(Refused::Raced),
        };
        let object = Arc::new(object);
        let place = (cluster.clone(), table.clone(), key.clone());
        self.changed.insert(place, (!deleted).then(|| object.clone()));
        self.rows.push(if deleted {
            Row::Remove {
                cluster: cluster.clone(),
                table: table.clone(),
                key,
            }
        } else {
            Row::Put {
                cluster: cluster.clone(),
                table: table.clone(),
                key,
                bytes: object.bytes.clone(),
            }
        });
        let change = Arc::new(Change {
            revision: self.revision,
            old,
            object: object.clone(),
            deleted,
        });
        self.effects.push(Effect::Change {
            cluster,
            table,
            change,
        });
        Ok(object)
    }

    fn current(&self, state: &State, cluster: &str, table: &str, key: &Key) -> Option<Arc<Stored>> {
        match self
            .changed
            .get(&(cluster.to_owned(), table.to_owned(), key.clone()))
        {
            Some(changed) => changed.clone(),
            None => state.cluster(cluster)?.get(table, key).cloned(),
        }
    }
}
