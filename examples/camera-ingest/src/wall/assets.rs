// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files of the page, in the program. Nothing is fetched from elsewhere.

/// A file: its path, its content type, and its text.
pub type Asset = (&'static str, &'static str, &'static str);

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub const ASSETS: [Asset; 13] = [
    ("/", "text/html; charset=utf-8", include_str!("assets/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("/app.js", SCRIPT, include_str!("assets/app.js")),
    ("/dom.js", SCRIPT, include_str!("assets/dom.js")),
    ("/connection.js", SCRIPT, include_str!("assets/connection.js")),
    ("/wall.js", SCRIPT, include_str!("assets/wall.js")),
    ("/focus.js", SCRIPT, include_str!("assets/focus.js")),
    ("/player.js", SCRIPT, include_str!("assets/player.js")),
    ("/boxes.js", SCRIPT, include_str!("assets/boxes.js")),
    ("/figures.js", SCRIPT, include_str!("assets/figures.js")),
    ("/plots.js", SCRIPT, include_str!("assets/plots.js")),
    ("/site.js", SCRIPT, include_str!("assets/site.js")),
];

/// The page loads from its own server only, runs no inline script, and cannot be framed.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
                          connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_no_other_host_and_no_inline_code() {
        for (path, _, text) in ASSETS {
            let without_names = text.replace("http://www.w3.org/2000/svg", "");
            for foreign in ["http://", "https://", "//cdn", "@import", " style=\"", " onclick=", "innerHTML"]
            {
                assert!(!without_names.contains(foreign), "{path} contains {foreign}");
            }
        }
        assert!(!POLICY.contains("unsafe") && !POLICY.contains('*'));
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for (path, _, text) in ASSETS {
            for line in text.lines().filter(|line| line.contains(" from \"./")) {
                let file = line.split("from \".").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
                assert!(ASSETS.iter().any(|(other, ..)| *other == file), "{path} imports {file}");
            }
        }
    }
}
