//! Quotas of a Project: how many claims it, and each user of it, may hold.

use std::collections::BTreeMap;

use hostler_sdk::Reason;

use crate::facts::{Count, Facts, Project};

const ALL: &str = "nodeclaims";
const OF_PROVIDER: &str = "nodeclaims.provider=";

/// Every quota that one more claim would break.
pub(crate) fn exceeded(facts: &Facts, project: &Project) -> Vec<Reason> {
    let Some(quotas) = &project.spec.quotas else {
        return Vec::new();
    };
    let (name, provider) = (project.name(), facts.provider());
    let mut against = Vec::new();
    if let Some(limits) = quotas.project.as_ref().filter(|limits| counts_claims(limits)) {
        let counted = facts.usage.as_ref().and_then(|usage| usage.project.as_ref());
        against.extend(check(
            limits,
            counted,
            provider,
            name,
            "project",
            &format!("Project {name}"),
        ));
    }
    if let Some(limits) = quotas.user.as_ref().filter(|limits| counts_claims(limits)) {
        match facts.usage.as_ref().map(|usage| usage.user.as_ref()) {
            // Else leaving out the owner would be the way around the quota.
            Some(None) => against.push(
                Reason::new(
                    "NoOwner",
                    format!("Project {name} counts claims per user, and this one has no user"),
                )
                .remedy("set spec.owner.user of the VirtualClusterInstance"),
            ),
            Some(Some(user)) => {
                let holder = format!("user {}", user.name);
                against.extend(check(limits, Some(&user.count), provider, name, "user", &holder));
            }
            None => against.extend(check(limits, None, provider, name, "user", "the user")),
        }
    }
    against
}

/// Quotas have other keys, for other things.
fn counts_claims(limits: &BTreeMap<String, String>) -> bool {
    limits.keys().any(|key| key.starts_with(ALL))
}

fn check(
    limits: &BTreeMap<String, String>,
    counted: Option<&Count>,
    provider: Option<&str>,
    project: &str,
    of: &str,
    holder: &str,
) -> Vec<Reason> {
    let mut against = Vec::new();
    for (key, limit) in limits.iter().filter(|(key, _)| key.starts_with(ALL)) {
        let place = format!("Project {project} spec.quotas.{of}[{key}]");
        let limited = match key.strip_prefix(OF_PROVIDER) {
            Some(name) => Some(name),
            None if key == ALL => None,
            None => {
                against.push(
                    Reason::new("BadQuota", format!("{place} is no quota of claims"))
                        .remedy(format!("write {ALL} or {OF_PROVIDER}<name> there")),
                );
                continue;
            }
        };
        let Ok(limit) = limit.trim().parse::<u64>() else {
            against.push(
                Reason::new("BadQuota", format!("{place} is {limit:?}, which is no count"))
                    .remedy(format!("write a whole number at {place}")),
            );
            continue;
        };
        if limited.is_some() && limited != provider {
            continue;
        }
        let Some(counted) = counted else {
            against.push(Reason::new(
                "UsageUnread",
                format!("{place} needs a count of claims, and none was taken"),
            ));
            continue;
        };
        let held = match limited {
            Some(name) => counted.by_provider.get(name).copied().unwrap_or_default(),
            None => counted.nodeclaims,
        };
        if held >= limit {
            let what = limited
                .map(|name| format!(" of provider {name}"))
                .unwrap_or_default();
            against.push(
                Reason::new(
                    "QuotaExceeded",
                    format!("{holder} holds {held} claims{what}, the quota is {limit}"),
                )
                .remedy(format!("raise {place}, or release a claim")),
            );
        }
    }
    against
}
