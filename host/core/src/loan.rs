//! Loans: what a driver changes on an object that somebody else made, recorded on that object in the same write, and given
//! back exactly.
//!
//! ```text
//!   free ──borrow(provision)──► lent ──borrow(release)──► cleaned ──give_back──► free
//!                │                                            │
//!                └ annotation hostler.dev/loan: whose, and for each place what stood there and what was written
//! ```
//!
//! # Guarantees
//! The record and the change are one value, so they are one write. The first recorded value of a place is never overwritten.
//! An object with the record of another claim, or of another installation, is never changed. What somebody else changed since
//! is left to them.

mod lending;
mod pointer;
mod record;
#[cfg(test)]
mod tests;

use hostler_api::names::LOAN;
use serde_json::Value;

use lending::Lent;
pub use pointer::{Pointer, difference, leaves};
pub use record::{ClaimId, Holder, Phase, Place, Record, Unreadable};

/// Fields by which controllers of machines say whose a machine is. Nobody enforces them, so they are never written over.
const HOLDERS: [&str; 2] = ["consumerRef", "claimRef"];

/// What a loan or its return makes of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    before: Value,
    after: Value,
}

/// Why an object is not borrowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The place is nobody's to borrow.
    #[error("{object}: {place} can not be borrowed; a loan changes a spec, labels and annotations only")]
    Protected {
        /// The object.
        object: String,
        /// The place.
        place: Pointer,
    },
    /// The place has another shape than the patch needs.
    #[error("{object}: {place} holds borrowed places of another shape; clear it before setting it anew")]
    Shape {
        /// The object.
        object: String,
        /// The place.
        place: Pointer,
    },
    /// Another claim has it. (Which one is not the reader's to know.)
    #[error("{object} is held by another claim; it comes free when that one is released")]
    HeldByClaim {
        /// The object.
        object: String,
    },
    /// Something else has it.
    #[error("{object} is in use: {place} is set by another consumer; take that away to free it")]
    HeldByOther {
        /// The object.
        object: String,
        /// Where that is said.
        place: Pointer,
    },
    /// It carries a record that cannot be read.
    #[error(
        "{object}: annotation {LOAN} can not be read ({why}); restore it, or remove it once the machine is known to be clean"
    )]
    Unreadable {
        /// The object.
        object: String,
        /// What is wrong.
        why: String,
    },
}

/// An object on its way back.
#[derive(Clone, Debug, PartialEq)]
pub struct Return {
    /// What to write.
    pub change: Change,
    /// Places that somebody else changed meanwhile: they stay as they are now.
    pub left: Vec<Pointer>,
}

impl Refusal {
    /// One CamelCase word.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Protected { .. } | Self::Shape { .. } => "DriverOutOfScope",
            Self::HeldByClaim { .. } => "HeldByClaim",
            Self::HeldByOther { .. } => "HeldByOther",
            Self::Unreadable { .. } => "LoanUnreadable",
        }
    }

    /// Whether the machine is somebody else's, so that another one must be found.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::HeldByClaim { .. } | Self::HeldByOther { .. } | Self::Unreadable { .. } => true,
            Self::Protected { .. } | Self::Shape { .. } => false,
        }
    }
}

impl Change {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.before == self.after
    }

    /// The whole object afterwards.
    #[must_use]
    pub fn after(&self) -> &Value {
        &self.after
    }

    /// The change as one merge patch; `None` where only the whole object says it (`after`).
    #[must_use]
    pub fn merge_patch(&self) -> Option<Value> {
        difference(&self.before, &self.after)
    }
}

/// The record on an object, whosever it is.
///
/// # Errors
/// There is one and it cannot be read. Such an object counts as held.
pub fn record(object: &Value) -> Result<Option<Record>, Unreadable> {
    annotation(object).map(Record::parse).transpose()
}

/// Who holds the object. A record that cannot be read is held by nobody that anyone knows, but held.
#[must_use]
pub fn holder(object: &Value) -> Option<Holder> {
    match record(object) {
        Ok(record) => record.map(|record| Holder {
            installation: record.installation,
            claim: record.claim,
        }),
        Err(_) => Some(Holder {
            installation: String::new(),
            claim: ClaimId::default(),
        }),
    }
}

/// Whether the object carries this holder's record.
#[must_use]
pub fn is_held_by(object: &Value, holder: &Holder) -> bool {
    record(object).is_ok_and(|record| record.is_some_and(|record| record.is_of(holder)))
}

/// Whether any record of a loan is on the object, also one that cannot be read.
#[must_use]
pub fn is_lent(object: &Value) -> bool {
    !matches!(record(object), Ok(None))
}

/// Changes the object as the patches say, and records that in the same value.
///
/// # Errors
/// A place that may not be borrowed, or an object that is somebody else's. Then nothing of it is to be written.
pub fn borrow(object: &Value, patches: &[&Value], holder: &Holder, phase: Phase) -> Result<Change, Refusal> {
    let known = ours(object, holder)?;
    let mut lent = Lent {
        name: name_of(object),
        after: object.clone(),
        record: known.clone().unwrap_or_else(|| Record::new(holder)),
        phase,
    };
    for patch in patches {
        for (place, want) in leaves(&lent.after, patch) {
            if is_protected(&place) {
                return Err(Refusal::Protected {
                    object: lent.name,
                    place,
                });
            }
            lent.set(place, want)?;
        }
    }
    // A release that touches nothing needs no hold; a provision without a place is one all the same.
    let needed = known.is_some() || phase == Phase::Provision || !lent.record.places.is_empty();
    if needed && known.as_ref() != Some(&lent.record) {
        lent.sign()?;
    }
    Ok(Change {
        before: object.clone(),
        after: lent.after,
    })
}

/// The object as it was, and the record off, in one value. An object that does not carry this holder's record is unchanged.
///
/// # Errors
/// The record is somebody else's or cannot be read.
pub fn give_back(object: &Value, holder: &Holder) -> Result<Return, Refusal> {
    let mut after = object.clone();
    let mut left = Vec::new();
    if let Some(record) = ours(object, holder)? {
        for place in record.places.iter().filter(|place| place.by == Phase::Provision) {
            let now = place.path.get(&after);
            if now == place.was.as_ref() {
                continue;
            }
            let is_as_set = now == place.set.as_ref();
            if !(is_as_set && place.path.set(&mut after, place.was.as_ref(), |_| {})) {
                left.push(place.path.clone());
            }
        }
        for map in &record.cleared {
            if map.get(&after).is_none() {
                map.set(&mut after, Some(&Value::Object(serde_json::Map::new())), |_| {});
            }
        }
        strip(&mut after, &record);
    }
    Ok(Return {
        change: Change {
            before: object.clone(),
            after,
        },
        left,
    })
}

/// The object as `machine-of` is to see it: without the marks of our hold, with everything that the machine really does.
///
/// Marks are labels, annotations and the fields that name a holder, as far as the release has not set them itself.
#[must_use]
pub fn hide(object: &Value) -> Value {
    let mut shown = object.clone();
    match record(object) {
        Ok(Some(record)) => {
            for place in record
                .places
                .iter()
                .filter(|place| is_mark(&place.path) && !place.released)
            {
                if place.path.get(&shown) == place.set.as_ref() {
                    place.path.set(&mut shown, place.was.as_ref(), |_| {});
                }
            }
            strip(&mut shown, &record);
        }
        Ok(None) => {}
        Err(_) => {
            loan_place().set(&mut shown, None, |_| {});
        }
    }
    shown
}

/// `Kind namespace/name` of an object, for messages.
#[must_use]
pub fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (kind, name) = (
        text("/kind").unwrap_or("object"),
        text("/metadata/name").unwrap_or_default(),
    );
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Whether no loan may touch this place, whatever a grant says.
#[must_use]
pub fn is_protected(place: &Pointer) -> bool {
    match place.segments() {
        [metadata, map, key] if metadata == "metadata" && (map == "labels" || map == "annotations") => {
            key == LOAN || key == "kubectl.kubernetes.io/last-applied-configuration"
        }
        [first, _, ..] => first == "metadata" || first == "status",
        [first] => matches!(first.as_str(), "metadata" | "status" | "apiVersion" | "kind"),
        [] => true,
    }
}

fn ours(object: &Value, holder: &Holder) -> Result<Option<Record>, Refusal> {
    match record(object) {
        Ok(Some(record)) if record.is_of(holder) => Ok(Some(record)),
        Ok(Some(_)) => Err(Refusal::HeldByClaim {
            object: name_of(object),
        }),
        Ok(None) => Ok(None),
        Err(why) => Err(Refusal::Unreadable {
            object: name_of(object),
            why: why.to_string(),
        }),
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let value = loan_place().get(object)?;
    // An annotation is a string; anything else cannot come from an API server, and is no record that could be read.
    Some(value.as_str().unwrap_or_default())
}

fn loan_place() -> Pointer {
    Pointer::default()
        .child("metadata")
        .child("annotations")
        .child(LOAN)
}

fn strip(object: &mut Value, record: &Record) {
    loan_place().set(object, None, |_| {});
    let mut maps: Vec<_> = record.maps.iter().collect();
    maps.sort_by_key(|map| std::cmp::Reverse(map.segments().len()));
    for map in maps {
        if map
            .get(object)
            .and_then(Value::as_object)
            .is_some_and(serde_json::Map::is_empty)
        {
            map.set(object, None, |_| {});
        }
    }
}

fn is_holder(place: &Pointer) -> bool {
    place.last().is_some_and(|key| HOLDERS.contains(&key))
}

fn is_mark(place: &Pointer) -> bool {
    is_holder(place) || place.segments().first().is_some_and(|first| first == "metadata")
}
