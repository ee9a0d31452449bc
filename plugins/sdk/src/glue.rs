//! Between the traits of this crate and the functions of a component: JSON text becomes values, and back.

use std::marker::PhantomData;

use serde_json::Value;

use crate::bindings::shared::types as wit;
use crate::driver::Driver;
use crate::policy::{Policy, bad_settings};
use crate::resolver::Resolver;
use crate::{Failure, Object, ObjectRef, Reason, bindings, driver, log, policy, resolver};

/// The component of a driver.
pub struct DriverOf<T>(PhantomData<T>);

/// The component of a policy.
pub struct PolicyOf<T>(PhantomData<T>);

/// The component of a resolver.
pub struct ResolverOf<T>(PhantomData<T>);

use bindings::driver::world as wit_driver;
use bindings::policy::world as wit_policy;
use bindings::resolver::world as wit_resolver;

impl<T: Driver> wit_driver::Guest for DriverOf<T> {
    fn describe(provider: wit::Object) -> Result<wit_driver::Description, wit::Failure> {
        say_panics();
        T::describe(&object(provider)).map(description).map_err(failure)
    }

    fn machine_of(
        provider: wit::Object,
        seen: wit::Object,
        related: Vec<wit::Object>,
    ) -> Result<Option<wit_driver::Machine>, wit::Failure> {
        say_panics();
        let machine = T::machine_of(&object(provider), &object(seen), &objects(related)).map_err(failure)?;
        Ok(machine.map(|machine| wit_driver::Machine {
            node_types: machine.node_types,
            availability: availability(machine.availability),
            json: machine.json.to_string(),
        }))
    }

    fn prepare(
        order: wit_driver::Order,
        seen: Vec<wit::Object>,
    ) -> Result<wit_driver::Preparation, wit::Failure> {
        say_panics();
        let preparation = T::prepare(&self::order(order), &objects(seen)).map_err(failure)?;
        Ok(wit_driver::Preparation {
            node_name: preparation.node_name,
            boot_namespace: preparation.boot_namespace,
            network_data: preparation.network_data,
        })
    }

    fn provision(order: wit_driver::Order, seen: Vec<wit::Object>) -> Result<wit_driver::Plan, wit::Failure> {
        say_panics();
        T::provision(&self::order(order), &objects(seen))
            .map(plan)
            .map_err(failure)
    }

    fn release(order: wit_driver::Order, seen: Vec<wit::Object>) -> Result<wit_driver::Plan, wit::Failure> {
        say_panics();
        T::release(&self::order(order), &objects(seen))
            .map(plan)
            .map_err(failure)
    }
}

impl<T: Policy> wit_policy::Guest for PolicyOf<T> {
    fn accepts(settings: String) -> Result<Vec<wit_policy::Interest>, wit::Reason> {
        say_panics();
        let settings = settings_of::<T::Settings>(&settings).map_err(|error| reason(bad_settings(&error)))?;
        let interest = |interest: policy::Interest| wit_policy::Interest {
            kind: interest.kind,
            wants: interest.wants,
        };
        T::accepts(&settings)
            .map(|list| list.into_iter().map(interest).collect())
            .map_err(reason)
    }

    fn review(settings: String, request: wit_policy::Request) -> wit_policy::Verdict {
        say_panics();
        let json = serde_json::from_str(&request.json).expect("the host sends valid JSON");
        let request = policy::Request {
            kind: request.kind,
            json,
        };
        let verdict = match settings_of::<T::Settings>(&settings) {
            Ok(settings) => T::review(&settings, &request),
            Err(error) => policy::Verdict::deny(bad_settings(&error)),
        };
        wit_policy::Verdict {
            allowed: verdict.allowed,
            reasons: verdict.reasons.into_iter().map(reason).collect(),
            valid_for: verdict.valid_for,
        }
    }
}

impl<T: Resolver> wit_resolver::Guest for ResolverOf<T> {
    fn resolve(
        settings: String,
        subject: wit_resolver::Subject,
        candidates: Vec<wit_resolver::Candidate>,
    ) -> Result<wit_resolver::Resolution, wit::Failure> {
        say_panics();
        let settings = settings_of::<T::Settings>(&settings)
            .map_err(|error| failure(Failure::Refused(bad_settings(&error))))?;
        let subject = resolver::Subject {
            tenant: object(subject.tenant),
            project: object(subject.project),
            enrollment: object(subject.enrollment),
            claim: subject.claim.map(object),
        };
        let candidate = |candidate: wit_resolver::Candidate| resolver::Candidate {
            source: candidate.source,
            profile: candidate.profile,
            exists: candidate.exists,
        };
        let candidates: Vec<_> = candidates.into_iter().map(candidate).collect();
        let resolution = T::resolve(&settings, &subject, &candidates).map_err(failure)?;
        Ok(wit_resolver::Resolution {
            chosen: resolution.chosen,
            why: resolution.why,
        })
    }
}

/// Settings as the host sends them; a component without settings gets an empty table.
pub fn settings_of<T: serde::de::DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(if text.is_empty() { "{}" } else { text })
}

/// A panic ends the instance and the host sees only a trap: say first what happened.
fn say_panics() {
    std::panic::set_hook(Box::new(|panic| log::error(&panic.to_string())));
}

fn object(object: wit::Object) -> Object {
    Object::received(
        object.api_version,
        object.kind,
        object.namespace,
        object.name,
        object.uid,
        object.json,
    )
}

fn objects(objects: Vec<wit::Object>) -> Vec<Object> {
    objects.into_iter().map(object).collect()
}

fn pointed(reference: wit::ObjectRef) -> ObjectRef {
    ObjectRef {
        api_version: reference.api_version,
        kind: reference.kind,
        namespace: reference.namespace,
        name: reference.name,
    }
}

fn pointing(reference: ObjectRef) -> wit::ObjectRef {
    wit::ObjectRef {
        api_version: reference.api_version,
        kind: reference.kind,
        namespace: reference.namespace,
        name: reference.name,
    }
}

fn reason(reason: Reason) -> wit::Reason {
    wit::Reason {
        code: reason.code,
        message: reason.message,
        remedy: reason.remedy,
    }
}

fn failure(failure: Failure) -> wit::Failure {
    match failure {
        Failure::Refused(why) => wit::Failure::Refused(reason(why)),
        Failure::Exhausted(why) => wit::Failure::Exhausted(reason(why)),
        Failure::Broken(why) => wit::Failure::Broken(reason(why)),
    }
}

fn order(order: wit_driver::Order) -> driver::Order {
    driver::Order {
        claim: object(order.claim),
        provider: object(order.provider),
        node_type: order.node_type,
        machine: order.machine.map(pointed),
        os_image: order.os_image.map(object),
        environment: order.environment.map(object),
        properties: order.properties.into(),
        boot_secret: order.boot_secret.map(pointed),
        memo: order.memo,
    }
}

fn description(description: driver::Description) -> wit_driver::Description {
    wit_driver::Description {
        config_schema: description.config_schema.to_string(),
        cluster: description.cluster,
        uses: description.uses.into_iter().map(kind_use).collect(),
        node_types: description.node_types.into_iter().map(node_type).collect(),
        properties: description.properties,
    }
}

fn kind_use(kind: driver::KindUse) -> wit_driver::KindUse {
    wit_driver::KindUse {
        api_version: kind.api_version,
        kind: kind.kind,
        namespace: kind.namespace,
        access: match kind.access {
            driver::Access::Read => wit_driver::Access::Read,
            driver::Access::BorrowFields => wit_driver::Access::BorrowFields,
            driver::Access::Manage => wit_driver::Access::Manage,
        },
        role: match kind.role {
            driver::Role::Machine => wit_driver::Role::Machine,
            driver::Role::Related => wit_driver::Role::Related,
            driver::Role::Product => wit_driver::Role::Product,
        },
        selector: kind.selector,
    }
}

fn node_type(kind: driver::NodeType) -> wit_driver::NodeType {
    wit_driver::NodeType {
        name: kind.name,
        capacity: match kind.capacity {
            driver::Capacity::Machines => wit_driver::Capacity::Machines,
            driver::Capacity::AtMost(count) => wit_driver::Capacity::AtMost(count),
            driver::Capacity::Unlimited => wit_driver::Capacity::Unlimited,
        },
        json: kind.json.to_string(),
    }
}

fn availability(availability: driver::Availability) -> wit_driver::Availability {
    match availability {
        driver::Availability::Free => wit_driver::Availability::Free,
        driver::Availability::Held(why) => wit_driver::Availability::Held(reason(why)),
        driver::Availability::Preparing(why) => wit_driver::Availability::Preparing(reason(why)),
        driver::Availability::Broken(why) => wit_driver::Availability::Broken(reason(why)),
    }
}

fn plan(plan: driver::Plan) -> wit_driver::Plan {
    wit_driver::Plan {
        owned: plan.owned.iter().map(Value::to_string).collect(),
        loans: plan
            .loans
            .into_iter()
            .map(|loan| wit_driver::Loan {
                target: pointing(loan.target),
                patch: loan.patch.to_string(),
            })
            .collect(),
        wants: plan.wants.into_iter().map(pointing).collect(),
        memo: plan.memo,
        outcome: match plan.outcome {
            driver::Outcome::Working(progress) => wit_driver::Outcome::Working(wit_driver::Progress {
                step: progress.step,
                message: progress.message,
                recheck: progress.recheck,
            }),
            driver::Outcome::Ready(identity) => wit_driver::Outcome::Ready(wit_driver::Identity {
                provider_id: identity.provider_id,
                addresses: identity.addresses,
            }),
            driver::Outcome::Gone => wit_driver::Outcome::Gone,
            driver::Outcome::Lost(why) => wit_driver::Outcome::Lost(reason(why)),
        },
    }
}
