//! One object on loan, while it is being changed: every place is recorded before it is written.

use serde_json::Value;

use super::record::{Phase, Place, Record};
use super::{Pointer, Refusal, is_holder, loan_place, pointer};

/// An object and its record, changed together.
pub(super) struct Lent {
    pub(super) name: String,
    pub(super) after: Value,
    pub(super) record: Record,
    pub(super) phase: Phase,
}

impl Lent {
    /// Sets one place, as this phase may.
    pub(super) fn set(&mut self, place: Pointer, want: Option<Value>) -> Result<(), Refusal> {
        if let Some(index) = self
            .record
            .places
            .iter()
            .position(|known| known.path.contains(&place))
        {
            return self.set_within(index, &place, want.as_ref());
        }
        let foreign = self.is_taken(&place);
        if foreign && self.phase == Phase::Release {
            return Ok(()); // Theirs now: the return leaves it to them as well.
        }
        if foreign {
            return Err(Refusal::HeldByOther {
                object: self.name.clone(),
                place,
            });
        }
        if let Some(known) = self.record.places.iter_mut().find(|known| known.path == place) {
            known.update(want.clone(), self.phase);
            return self.write(&place, want.as_ref());
        }
        if self.record.places.iter().any(|known| place.contains(&known.path)) {
            return match want {
                None => self.clear(&place),
                Some(_) => Err(Refusal::Shape {
                    object: self.name.clone(),
                    place,
                }),
            };
        }
        let was = place.get(&self.after).cloned();
        if self.phase == Phase::Release && was == want {
            return Ok(());
        }
        self.record
            .places
            .push(Place::first(place.clone(), was, want.clone(), self.phase));
        self.write(&place, want.as_ref())
    }

    /// A change inside a place that is borrowed as a whole.
    fn set_within(&mut self, index: usize, place: &Pointer, want: Option<&Value>) -> Result<(), Refusal> {
        self.write(place, want)?;
        let known = &mut self.record.places[index];
        let now = known.path.get(&self.after).cloned();
        known.update(now, self.phase);
        Ok(())
    }

    /// Takes a map away in which places are borrowed already: those keep their first value, the others get one now.
    fn clear(&mut self, place: &Pointer) -> Result<(), Refusal> {
        let mut standing = Vec::new();
        if let Some(value) = place.get(&self.after) {
            pointer::standing(place, value, &mut standing);
            if self.phase == Phase::Provision {
                self.record.note_cleared(place, value);
            }
        }
        for known in self
            .record
            .places
            .iter_mut()
            .filter(|known| place.contains(&known.path))
        {
            known.update(None, self.phase);
        }
        for (leaf, value) in standing {
            let covered = self
                .record
                .places
                .iter()
                .any(|known| known.path == leaf || known.path.contains(&leaf));
            let above = self.record.places.iter().any(|known| leaf.contains(&known.path));
            if !covered && !above {
                self.record
                    .places
                    .push(Place::first(leaf, Some(value), None, self.phase));
            }
        }
        self.write(place, None)
    }

    fn write(&mut self, place: &Pointer, want: Option<&Value>) -> Result<(), Refusal> {
        let Record {
            maps,
            places,
            cleared,
            ..
        } = &mut self.record;
        // A map inside a place that is borrowed whole comes back, or goes, with that place.
        let is_known = |map: &Pointer| {
            places
                .iter()
                .any(|known| known.path == *map || known.path.contains(map))
                || cleared.contains(map)
        };
        let note = |map: Pointer| {
            if !maps.contains(&map) && !is_known(&map) {
                maps.push(map);
            }
        };
        if place.set(&mut self.after, want, note) {
            return Ok(());
        }
        Err(Refusal::Shape {
            object: self.name.clone(),
            place: place.clone(),
        })
    }

    /// Whether a field that names a holder names one that is not ours.
    fn is_taken(&self, place: &Pointer) -> bool {
        if !is_holder(place) {
            return false;
        }
        let now = place.get(&self.after).filter(|value| !value.is_null());
        match self.record.places.iter().find(|known| known.path == *place) {
            Some(known) => now.is_some() && now != known.set.as_ref(),
            None => now.is_some(),
        }
    }

    /// Writes the record.
    pub(super) fn sign(&mut self) -> Result<(), Refusal> {
        let place = loan_place();
        let annotations = Pointer::default().child("metadata").child("annotations");
        if annotations.get(&self.after).is_none() && !self.record.maps.contains(&annotations) {
            self.record.maps.push(annotations);
        }
        let text = Value::String(self.record.text());
        if place.set(&mut self.after, Some(&text), |_| {}) {
            return Ok(());
        }
        Err(Refusal::Shape {
            object: self.name.clone(),
            place,
        })
    }
}
