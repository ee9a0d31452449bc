//! Reads the tables that kubectl prints: cells by header.

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns begin where the header has a word after at least two spaces; one space is part of a header.
    pub(crate) fn read(text: &str) -> Self {
        let mut lines = text.lines();
        let header: Vec<char> = lines.next().unwrap_or_default().chars().collect();
        let starts: Vec<usize> = (0..header.len())
            .filter(|at| {
                header[*at] != ' '
                    && (*at == 0 || (*at > 1 && header[*at - 1] == ' ' && header[*at - 2] == ' '))
            })
            .collect();
        let cut = |line: &[char]| -> Vec<String> {
            let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
            let cells = starts.iter().zip(ends).map(|(start, end)| {
                let (start, end) = ((*start).min(line.len()), end.min(line.len()));
                line[start..end].iter().collect::<String>().trim().to_owned()
            });
            cells.collect()
        };
        let rows = lines.map(|line| cut(&line.chars().collect::<Vec<_>>())).collect();
        Self {
            headers: cut(&header),
            rows,
        }
    }

    /// Rows, with the cells of these columns only.
    pub(crate) fn of(&self, headers: &[&str]) -> Vec<Vec<&str>> {
        let at: Vec<usize> = headers
            .iter()
            .map(|header| {
                let found = self.headers.iter().position(|known| known == header);
                found.unwrap_or_else(|| panic!("no column {header} in {:?}", self.headers))
            })
            .collect();
        self.rows
            .iter()
            .map(|row| at.iter().map(|at| row[*at].as_str()).collect())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

#[test]
fn cells_are_found_under_their_headers_also_where_others_are_empty() {
    let table = Table::read("NAME   CREATED AT   LAST\na                   x y\nbcd    now          \n");
    assert_eq!(table.headers, ["NAME", "CREATED AT", "LAST"]);
    assert_eq!(table.of(&["LAST", "NAME"]), [["x y", "a"], ["", "bcd"]]);
    assert_eq!(table.of(&["CREATED AT"]), [[""], ["now"]]);
}
