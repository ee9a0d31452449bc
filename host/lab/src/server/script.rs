//! What a simulated container does: as annotations of its pod say, which only the laboratory reads.
//!
//! Without any of them it runs until somebody ends it, and says nothing.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// What its containers print; `kubectl logs` shows it.
pub(crate) const LOGS: &str = "lab.hostler.dev/logs";
/// With this, its containers end by themselves, with this exit code.
pub(crate) const EXIT_CODE: &str = "lab.hostler.dev/exit-code";
/// How many seconds they run before that.
pub(crate) const RUNS_FOR: &str = "lab.hostler.dev/runs-for";

/// Without [`RUNS_FOR`].
const A_MOMENT: Duration = Duration::from_secs(1);

/// What the containers of a pod do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    /// How they end, if they do so by themselves.
    pub(crate) end: Option<End>,
}

/// How a container ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) after: Duration,
    pub(crate) code: i32,
}

impl Script {
    /// Reads the annotations; the error says which one cannot be read, and what it should be.
    pub(crate) fn parse(pod: &Pod) -> Result<Self, String> {
        let number = |key: &str, most: u32| {
            let Some(text) = pod.annotations().get(key) else {
                return Ok(None);
            };
            let number = text.trim().parse::<u32>().ok().filter(|number| *number <= most);
            number
                .map(Some)
                .ok_or_else(|| format!("annotation {key} is {text:?}; set it to a number from 0 to {most}"))
        };
        let code = number(EXIT_CODE, 255)?;
        let after = number(RUNS_FOR, 86_400)?.map_or(A_MOMENT, |seconds| Duration::from_secs(seconds.into()));
        let end = code
            .and_then(|code| i32::try_from(code).ok())
            .map(|code| End { after, code });
        Ok(Self { end })
    }
}

/// What the containers of a pod print, each line ended.
pub(crate) fn logs(pod: &Pod) -> String {
    let mut text = pod.annotations().get(LOGS).cloned().unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}})).unwrap()
    }

    #[rstest]
    #[case::without_a_word(json!({}), None)]
    #[case::that_only_talks(json!({LOGS: "hello"}), None)]
    #[case::that_ends(json!({EXIT_CODE: "0"}), Some((1, 0)))]
    #[case::that_fails_later(json!({EXIT_CODE: "3", RUNS_FOR: "20"}), Some((20, 3)))]
    fn a_container(#[case] annotations: Value, #[case] expected: Option<(u64, i32)>) {
        let end = Script::parse(&pod(annotations)).unwrap().end;
        assert_eq!(end.map(|end| (end.after.as_secs(), end.code)), expected);
    }

    #[rstest]
    #[case(json!({EXIT_CODE: "256"}), "annotation lab.hostler.dev/exit-code is \"256\"; set it to a number from 0 to 255")]
    #[case(json!({RUNS_FOR: "1s"}), "annotation lab.hostler.dev/runs-for is \"1s\"; set it to a number from 0 to 86400")]
    fn what_cannot_be_read_is_told(#[case] annotations: Value, #[case] why: &str) {
        assert_eq!(Script::parse(&pod(annotations)).unwrap_err(), why);
    }

    #[test]
    fn the_last_line_is_ended() {
        assert_eq!(logs(&pod(json!({LOGS: "a\nb"}))), "a\nb\n");
        assert_eq!(logs(&pod(json!({LOGS: "a\n"}))), "a\n");
        assert_eq!(logs(&pod(json!({}))), "");
    }
}
