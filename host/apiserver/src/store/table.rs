//! All objects of one kind in one cluster, and the changes of the near past.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use super::object::{Key, Stored};

/// How many changes, and how many bytes of them, a table remembers for watches and for pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Changes at most.
    pub(crate) changes: usize,
    /// Bytes at most.
    pub(crate) bytes: usize,
}

/// What happened to one object.
#[derive(Debug)]
pub(crate) struct Change {
    /// The revision that it made.
    pub(crate) revision: u64,
    /// The object before; none when it was created.
    pub(crate) old: Option<Arc<Stored>>,
    /// The object after; when it was deleted, its last state at the revision of the deletion.
    pub(crate) object: Arc<Stored>,
    /// Whether it was deleted.
    pub(crate) deleted: bool,
}

impl Change {
    fn weight(&self) -> usize {
        self.object.bytes.len()
    }
}

/// Why a past state cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    /// The oldest revision from which all changes are known.
    pub(crate) floor: u64,
}

/// All objects of one kind.
#[derive(Debug)]
pub(crate) struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    past: VecDeque<Arc<Change>>,
    past_bytes: usize,
    /// Changes after this revision are all in `past`.
    floor: u64,
    window: Window,
    news: watch::Sender<u64>,
}

impl Table {
    /// An empty table that knows nothing of what happened up to `floor`.
    pub(crate) fn new(floor: u64, window: Window) -> Self {
        Self {
            objects: BTreeMap::new(),
            past: VecDeque::new(),
            past_bytes: 0,
            floor,
            window,
            news: watch::Sender::new(floor),
        }
    }

    /// Puts an object read from disk in its place.
    pub(crate) fn load(&mut self, object: Arc<Stored>) {
        self.objects.insert(object.key.clone(), object);
    }

    /// Makes a change that is safely on disk visible.
    pub(crate) fn apply(&mut self, change: Arc<Change>) {
        if change.deleted {
            self.objects.remove(&change.object.key);
        } else {
            self.objects
                .insert(change.object.key.clone(), change.object.clone());
        }
        self.past_bytes += change.weight();
        self.past.push_back(change);
        while self.past.len() > self.window.changes || self.past_bytes > self.window.bytes {
            let Some(forgotten) = self.past.pop_front() else {
                break;
            };
            self.past_bytes -= forgotten.weight();
            self.floor = forgotten.revision;
        }
    }

    /// Wakes those who watch; after the revision of the whole store was advanced.
    pub(crate) fn announce(&self, revision: u64) {
        self.news.send_replace(revision);
    }

    /// A receiver that wakes at each change, and ends with the table.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// One object.
    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The objects of a namespace, or all for an empty one, in the order of their keys.
    pub(crate) fn range<'a>(
        &'a self,
        namespace: &'a str,
        after: Option<&Key>,
    ) -> impl Iterator<Item = &'a Arc<Stored>> + use<'a> {
        let start = match after {
            Some(key) => Bound::Excluded(key.clone()),
            None => Bound::Included(Key::new(namespace, "")),
        };
        self.objects
            .range((start, Bound::Unbounded))
            .map(|(_, object)| object)
            .take_while(move |object| namespace.is_empty() || object.key.namespace == namespace)
    }

    /// The changes after `revision`, oldest first.
    pub(crate) fn since(&self, revision: u64) -> Result<impl Iterator<Item = &Arc<Change>>, TooOld> {
        if revision < self.floor {
            return Err(TooOld { floor: self.floor });
        }
        let start = self.past.partition_point(|change| change.revision <= revision);
        Ok(self.past.range(start..))
    }

    /// The objects of a namespace as they were at `revision`, after `after`.
    pub(crate) fn at(
        &self,
        revision: u64,
        namespace: &str,
        after: Option<&Key>,
    ) -> Result<Vec<Arc<Stored>>, TooOld> {
        let undone: Vec<&Arc<Change>> = self.since(revision)?.collect();
        let wanted = |key: &Key| {
            (namespace.is_empty() || key.namespace == namespace) && after.is_none_or(|after| key > after)
        };
        let mut then: BTreeMap<Key, Arc<Stored>> = BTreeMap::new();
        for object in self.range(namespace, after) {
            then.insert(object.key.clone(), object.clone());
        }
        for change in undone
            .into_iter()
            .rev()
            .filter(|change| wanted(&change.object.key))
        {
            match &change.old {
                Some(old) => then.insert(old.key.clone(), old.clone()),
                None => then.remove(&change.object.key),
            };
        }
        Ok(then.into_values().collect())
    }
}
