//! Metal3 driver: a node is a BareMetalHost that is told to write an image.
//!
//! Thin on purpose. What a provider says is in `config` and `describe`, what a host is in `bmh` and `availability`, what must be true for
//! an order in `plan`, what the machine boots with in `image` and `network`. All of it is pure.
//!
//! # Guarantees
//! A host that holds a tenant's image is never called free or gone: only Metal3's own word that it has cleaned it counts.

mod availability;
mod bmh;
mod config;
mod describe;
mod image;
mod network;
mod plan;
mod quantity;
#[cfg(test)]
mod recorded;
mod selector;

use hostler_sdk::driver::{Description, Driver, Machine, Order, Plan, Preparation};
use hostler_sdk::{Failure, Object};

use crate::bmh::Host;
use crate::config::Config;

/// The driver; see the module.
pub struct Metal3;

impl Driver for Metal3 {
    fn describe(provider: &Object) -> Result<Description, Failure> {
        Ok(describe::description(&Config::of(provider)?))
    }

    fn machine_of(provider: &Object, seen: &Object, _related: &[Object]) -> Result<Option<Machine>, Failure> {
        Ok(availability::machine(&Config::of(provider)?, &Host::of(seen)))
    }

    fn prepare(order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
        plan::prepare(order, seen)
    }

    fn provision(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        plan::provision(order, seen)
    }

    fn release(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        Ok(plan::release(order, seen))
    }
}

hostler_sdk::export_driver!(Metal3);
hostler_sdk::cases!(Metal3);
