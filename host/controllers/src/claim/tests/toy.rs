//! A data centre of toys: a driver that is a small real thing, machines that take a moment, and a client that dies.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use hostler_apiserver::Local;
use hostler_core::grant::{Grant, KindGrant};
use hostler_core::seams::{
    Access, Availability, Capacity, Description, Driver, Failure, KindUse, Loan, Machine, MachineIdentity,
    NodeTypeOffer, Object, ObjectRef, Order, Outcome, Plan, PluginState, Plugins, Policy, Preparation,
    Progress, Reason, Resolver, Role,
};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::Service;

pub(super) const TOYS: &str = "toys.example.com/v1";
pub(super) const MACHINES: &str = "machines";

/// How a driver behaves.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mood {
    /// As it should.
    Honest,
    /// Says `gone` at once, whatever the machine does.
    GivesUp,
    /// As it should, and is another component.
    Replaced,
    /// Answers every `provision` with this plan instead.
    Answers(Box<Plan>),
}

/// A driver for ToyMachines.
pub(super) struct Toy {
    pub(super) mood: Mood,
}

impl Toy {
    fn plan(loans: Vec<Loan>, outcome: Outcome) -> Plan {
        Plan {
            owned: Vec::new(),
            loans,
            wants: Vec::new(),
            memo: String::new(),
            outcome,
        }
    }

    fn working(step: &str) -> Outcome {
        Outcome::Working(Progress {
            step: step.to_owned(),
            message: step.to_lowercase(),
            recheck: None,
        })
    }
}

fn machine_in<'o>(order: &Order, seen: &'o [Object]) -> Option<&'o Object> {
    let wanted = order.machine.as_ref()?;
    seen.iter()
        .find(|one| one.kind == wanted.kind && one.name == wanted.name)
}

fn state(machine: &Object) -> &str {
    machine
        .json
        .pointer("/status/state")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[async_trait]
impl Driver for Toy {
    fn digest(&self) -> &str {
        if self.mood == Mood::Replaced {
            "sha256:other"
        } else {
            "sha256:toy"
        }
    }

    fn grant(&self) -> Arc<Grant> {
        let granted = |api_version: &str, kind: &str, access, places: &[&str]| KindGrant {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            access,
            namespaces: vec![MACHINES.to_owned()],
            places: places.iter().map(|place| (*place).to_owned()).collect(),
            service_account: None,
        };
        let places = [
            "/spec/image",
            "/spec/online",
            "/spec/userData",
            "/spec/consumerRef",
            "/metadata/labels/toys*",
        ];
        let mut grant = Grant::nothing();
        grant.kinds = vec![
            granted(TOYS, "ToyMachine", Access::BorrowFields, &places),
            granted("v1", "ConfigMap", Access::Manage, &[]),
        ];
        Arc::new(grant)
    }

    async fn describe(&self, _: &Object) -> Result<Description, Failure> {
        let used = |api_version: &str, kind: &str, access, role| KindUse {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: MACHINES.to_owned(),
            access,
            role,
            selector: String::new(),
        };
        Ok(Description {
            config_schema: json!({}),
            cluster: None,
            uses: vec![
                used(TOYS, "ToyMachine", Access::BorrowFields, Role::Machine),
                used("v1", "ConfigMap", Access::Manage, Role::Product),
            ],
            node_types: vec![NodeTypeOffer {
                name: "small".to_owned(),
                capacity: Capacity::Machines,
                json: json!({}),
            }],
            properties: Vec::new(),
        })
    }

    async fn machine_of(&self, _: &Object, seen: &Object, _: &[Object]) -> Result<Option<Machine>, Failure> {
        let set = |place: &str| seen.json.pointer(place).is_some();
        let availability = if set("/spec/consumerRef") || set("/spec/image") {
            Availability::Held(Reason::new("InUse", "somebody uses it"))
        } else if state(seen) == "free" {
            Availability::Free
        } else {
            Availability::Preparing(Reason::new("NotReady", format!("it is {}", state(seen))))
        };
        Ok(Some(Machine {
            node_types: vec!["small".to_owned()],
            availability,
            json: json!({}),
        }))
    }

    async fn prepare(&self, order: &Order, _: &[Object]) -> Result<Preparation, Failure> {
        let machine = order.machine.as_ref().expect("toys are machines");
        Ok(Preparation {
            node_name: machine.name.clone(),
            boot_namespace: MACHINES.to_owned(),
            network_data: Some("net: {}".to_owned()),
        })
    }

    async fn provision(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        if let Mood::Answers(plan) = &self.mood {
            return Ok((**plan).clone());
        }
        let Some(machine) = machine_in(order, seen) else {
            return Ok(Self::plan(
                Vec::new(),
                Outcome::Lost(Reason::new("MachineLost", "it is gone")),
            ));
        };
        let boot = order
            .boot_secret
            .as_ref()
            .expect("boot data comes before the machine");
        let patch = json!({
            "metadata": {"labels": {"toys-claim": order.claim.name}},
            "spec": {
                "image": {"url": "http://images/os"},
                "online": true,
                "userData": {"name": boot.name, "namespace": boot.namespace},
                "consumerRef": {"kind": "NodeClaim", "name": order.claim.name},
            },
        });
        let outcome = if state(machine) == "running" {
            Outcome::Ready(MachineIdentity {
                provider_id: Some(format!("toy://{}", machine.name)),
                addresses: Vec::new(),
            })
        } else {
            Self::working("Installing")
        };
        let target = order.machine.clone().expect("toys are machines");
        Ok(Self::plan(vec![Loan { target, patch }], outcome))
    }

    async fn release(&self, order: &Order, seen: &[Object]) -> Result<Plan, Failure> {
        let gone = Self::plan(Vec::new(), Outcome::Gone);
        let Some(machine) = machine_in(order, seen).filter(|_| self.mood != Mood::GivesUp) else {
            return Ok(gone);
        };
        if state(machine) == "free"
            && machine.json.pointer("/spec/image").is_none()
            && machine.json["spec"]["online"] == json!(false)
        {
            return Ok(gone);
        }
        let patch = json!({"spec": {"image": null, "userData": null, "online": false}});
        let target = order.machine.clone().expect("toys are machines");
        Ok(Self::plan(vec![Loan { target, patch }], Self::working("Wiping")))
    }
}

/// Serves one driver.
pub(super) struct Shelf(pub(super) Arc<Toy>);

#[async_trait]
impl Plugins for Shelf {
    fn driver(&self, name: &str, digest: Option<&str>) -> Result<Arc<dyn Driver>, Failure> {
        if name == "driver-toy" && digest.is_none_or(|digest| digest == self.0.digest()) {
            return Ok(self.0.clone());
        }
        Err(Failure::Missing(Reason::new(
            "DriverMissing",
            format!("{name} is not loaded"),
        )))
    }

    fn resolver(&self) -> Result<Arc<dyn Resolver>, Failure> {
        Err(Failure::Missing(Reason::new("ResolverMissing", "there is none")))
    }

    fn policies(&self) -> Result<Vec<Arc<dyn Policy>>, Failure> {
        Ok(Vec::new())
    }

    fn states(&self) -> Vec<PluginState> {
        Vec::new()
    }

    fn generation(&self) -> u64 {
        0
    }

    async fn changed(&self, _: u64) -> u64 {
        std::future::pending().await
    }

    fn retain(&self, _: &BTreeSet<String>) {}
}

/// A way to the API that ends after so many writes: the last one lands and its answer is lost, as with a host that is killed.
/// Everything that a watch tells comes late.
#[derive(Clone)]
pub(super) struct Mortal {
    inner: Local,
    left: Arc<AtomicUsize>,
    dead: CancellationToken,
    lag: Duration,
}

impl Mortal {
    pub(super) fn new(inner: Local, left: Arc<AtomicUsize>, dead: CancellationToken, lag: Duration) -> Self {
        Self {
            inner,
            left,
            dead,
            lag,
        }
    }
}

type Request = http::Request<kube::client::Body>;
type Failed = Box<dyn std::error::Error + Send + Sync>;
type Stream = UnsyncBoxBody<Bytes, Failed>;

impl Service<Request> for Mortal {
    type Response = http::Response<Stream>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let mut this = self.clone();
        Box::pin(async move {
            if this.dead.is_cancelled() {
                return Err("the host is dead".into());
            }
            let is_read = request.method() == http::Method::GET;
            let is_watch = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch="));
            let left = |left: usize| left.checked_sub(1);
            if !is_read
                && this
                    .left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
                    .is_err()
            {
                this.dead.cancel();
                return Err("the host is dead".into());
            }
            let answer = this
                .inner
                .call(request)
                .await
                .expect("a local service does not fail");
            if !is_read && this.left.load(Ordering::SeqCst) == 0 {
                this.dead.cancel();
                return Err("the host died before it heard the answer".into());
            }
            let lag = if is_watch { this.lag } else { Duration::ZERO };
            let (parts, body) = answer.into_parts();
            let late = body.into_data_stream().map(move |part| async move {
                if !lag.is_zero() {
                    tokio::time::sleep(lag).await;
                }
                part.map(http_body::Frame::data).map_err(Failed::from)
            });
            // Each part is late by the same time; they do not wait for each other.
            Ok(http::Response::from_parts(
                parts,
                StreamBody::new(late.buffered(10_000)).boxed_unsync(),
            ))
        })
    }
}

/// Where a machine is.
pub(super) fn reference(name: &str) -> ObjectRef {
    ObjectRef {
        api_version: TOYS.to_owned(),
        kind: "ToyMachine".to_owned(),
        namespace: Some(MACHINES.to_owned()),
        name: name.to_owned(),
    }
}
