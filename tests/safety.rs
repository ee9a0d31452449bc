//! What an attacker tries, and what must stand afterwards. The rules are in the safety chapter of the design; here they are proved
//! on the whole host.

mod ambush;
mod grants;
mod joins;
mod kubeconfigs;
mod plans;
mod policies;
mod secrets;
pub(crate) mod stage;
mod swap;
mod tenants;
