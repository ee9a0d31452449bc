//! Words of guests, made safe to show.

/// Characters of a message that are kept.
pub(crate) const MESSAGE: usize = 256;

/// Code of a reason whose own code is no word.
const NO_CODE: &str = "PluginReason";

/// One line of at most [`MESSAGE`] characters without control characters, also not the invisible ones that reorder text.
pub(crate) fn message(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MESSAGE));
    let mut kept = 0;
    let mut gap = false;
    // A bound on what is looked at, not only on what is kept: the text may be a mebibyte of spaces.
    for c in text.chars().take(MESSAGE * 8) {
        if c.is_whitespace() || c.is_control() || is_format(c) {
            gap = kept > 0;
            continue;
        }
        let width = 1 + usize::from(gap);
        if kept + width > MESSAGE {
            break;
        }
        if gap {
            line.push(' ');
            gap = false;
        }
        line.push(c);
        kept += width;
    }
    line
}

/// One CamelCase word.
pub(crate) fn code(text: &str) -> String {
    let is_word = text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word {
        text.to_owned()
    } else {
        NO_CODE.to_owned()
    }
}

/// Whether this can stand where the host takes a name, a key or a version: short, and nothing invisible in it.
pub(crate) fn is_plain(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(|c| c.is_control() || is_format(c))
}

/// Characters that print nothing and change how their neighbours are read.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_to_256_characters_not_bytes() {
        let cut = message(&"ü".repeat(1_000));
        assert_eq!(cut.chars().count(), MESSAGE);
    }

    #[test]
    fn a_message_of_many_lines_becomes_one_without_control_characters() {
        assert_eq!(
            message("\u{1b}[31mfirst\r\n\tsecond\u{0}\u{202e} third\n"),
            "[31mfirst second third"
        );
    }

    #[test]
    fn a_message_of_spaces_is_empty() {
        assert_eq!(message(&" ".repeat(1 << 20)), "");
    }

    #[test]
    fn a_code_that_is_no_word_is_replaced() {
        assert_eq!(code("HostBusy"), "HostBusy");
        for bad in ["", "host busy", "lower", "With-Dash", "Ünicode", &"A".repeat(65)] {
            assert_eq!(code(bad), NO_CODE, "{bad}");
        }
    }
}
