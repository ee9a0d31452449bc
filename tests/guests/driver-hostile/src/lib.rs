//! A driver for the host's tests: well behaved, except for what its plan says.
//!
//! The plan is the order's property `hostile/plan`, else the provider's: `spec.driver.config.plan`, or `hostile/plan` among its
//! `spec.properties`. What it aims at is `hostile/victim` likewise. Without a plan, or with `none`, it drives BareMetalHosts in a plain way.
//!
//! The plans are in [`plan::PLANS`], each with the function in which it strikes and what it tries. Where a plan is about the call and not
//! about the answer (`loop`, `trap`, …), `hostile/at` names the function, `provision` unless said otherwise.

pub mod plan;
mod tame;

use hostler_sdk::driver::{Description, Driver, Machine, Order, Plan, Preparation};
use hostler_sdk::{Failure, Object};

use crate::plan::Intent;

/// The driver; see the module.
pub struct Hostile;

impl Driver for Hostile {
    fn describe(provider: &Object) -> Result<Description, Failure> {
        let intent = Intent::of_provider(provider);
        intent.misbehave("describe");
        Ok(intent.bend_description(tame::description(provider)?))
    }

    fn machine_of(provider: &Object, seen: &Object, _related: &[Object]) -> Result<Option<Machine>, Failure> {
        let intent = Intent::of_provider(provider);
        intent.misbehave("machine-of");
        Ok(Some(intent.bend_machine(tame::machine(seen))))
    }

    fn prepare(order: &Order, seen: &[Object]) -> Result<Preparation, Failure> {
        let intent = Intent::of_order(order);
        intent.misbehave("prepare");
        Ok(intent.bend_preparation(tame::prepare(order, seen)?))
    }

    fn provision(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        let intent = Intent::of_order(order);
        intent.misbehave("provision");
        let mut plan = intent.bend_plan("provision", tame::provision(order, seen)?);
        intent.repeat_what_was_seen(order, seen, &mut plan);
        Ok(plan)
    }

    fn release(order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        let intent = Intent::of_order(order);
        intent.misbehave("release");
        Ok(intent.bend_plan("release", tame::release(order, seen)))
    }
}

hostler_sdk::export_driver!(Hostile);
hostler_sdk::cases!(Hostile);
