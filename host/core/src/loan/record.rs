//! The record of a loan, as it stands in the annotation of the borrowed object.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::Pointer;

/// Who borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of this installation.
    pub installation: String,
    /// The claim.
    pub claim: ClaimId,
}

/// A claim, as one certain object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimId {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// uid; the only part that decides.
    pub uid: String,
}

/// Which of the driver's answers touched a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The way out.
    Provision,
    /// The way back.
    Release,
}

/// Everything that is borrowed on one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Installation that holds the object.
    pub installation: String,
    /// Claim that holds it.
    pub claim: ClaimId,
    /// What was changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
    /// Maps that were not there and were made for a place: they go again once they are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<Pointer>,
    /// Maps that stood there and were taken away whole: they come back, even if nothing is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cleared: Vec<Pointer>,
}

/// One changed place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Where.
    pub path: Pointer,
    /// What stood there before the first change; left out for nothing.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub was: Option<Value>,
    /// What was written last; left out for nothing.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub set: Option<Value>,
    /// Who touched it first: a place that the release touched first stays as the release set it.
    pub by: Phase,
    /// Whether the release has set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

impl Record {
    pub(super) fn new(holder: &Holder) -> Self {
        Self {
            installation: holder.installation.clone(),
            claim: holder.claim.clone(),
            places: Vec::new(),
            maps: Vec::new(),
            cleared: Vec::new(),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, Unreadable> {
        serde_json::from_str(text).map_err(|error| Unreadable(error.to_string()))
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("strings, maps and JSON values always have a JSON form")
    }

    /// Whether this holder made it.
    #[must_use]
    pub fn is_of(&self, holder: &Holder) -> bool {
        self.installation == holder.installation && self.claim.uid == holder.claim.uid
    }

    /// Remembers the maps at and below a place that is about to go, except those that we made.
    pub(super) fn note_cleared(&mut self, place: &Pointer, value: &Value) {
        let Value::Object(map) = value else { return };
        let covered = self
            .places
            .iter()
            .any(|known| known.path == *place || known.path.contains(place));
        if covered {
            return;
        }
        if !self.maps.contains(place) && !self.cleared.contains(place) {
            self.cleared.push(place.clone());
        }
        for (key, value) in map {
            self.note_cleared(&place.child(key), value);
        }
    }
}

impl Place {
    pub(super) fn first(path: Pointer, was: Option<Value>, set: Option<Value>, by: Phase) -> Self {
        Self {
            path,
            was,
            set,
            by,
            released: by == Phase::Release,
        }
    }

    pub(super) fn update(&mut self, set: Option<Value>, by: Phase) {
        if self.set != set {
            self.set = set;
            self.released = by == Phase::Release;
        }
    }
}

/// A key that is there holds a value, also when that is null; one that is not there holds none.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
