//! How much a cache holds of an API that is not trusted.

use std::collections::HashSet;
use std::hash::Hash;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;

use super::name_of;

/// Which objects a bounded cache has room for.
pub(super) struct Bound<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    most: usize,
    held: HashSet<ObjectRef<K>>,
    told: bool,
}

impl<K> Bound<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            held: HashSet::new(),
            told: false,
        }
    }

    /// Whether the object of an event has room; told once, when the first has none.
    pub(super) fn admits(&mut self, event: &watcher::Event<K>, kind: &K::DynamicType) -> bool {
        match event {
            watcher::Event::Init => self.held.clear(),
            watcher::Event::InitDone => {}
            watcher::Event::Delete(object) => {
                self.held.remove(&name_of(object, kind));
            }
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                let name = name_of(object, kind);
                if self.held.len() >= self.most && !self.held.contains(&name) {
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(kind = %K::kind(kind), most = self.most, "too many objects; the rest is left out");
                    }
                    return false;
                }
                self.held.insert(name);
            }
        }
        true
    }
}
