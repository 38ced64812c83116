//! `/docs`: readable in a browser without a request to another host.

use regex::Regex;

use crate::support::{App, Client};

/// What an HTML page makes a browser fetch.
fn fetched_by_html(html: &str) -> Vec<String> {
    let attribute = Regex::new(r#"(?i)(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)"#).unwrap();
    attribute.captures_iter(html).map(|found| found[1].to_owned()).collect()
}

fn fetched_by_css(css: &str) -> Vec<String> {
    let url = Regex::new(r#"(?i)(?:url\(\s*|@import\s+)["']?([^"')\s]+)"#).unwrap();
    url.captures_iter(css).map(|found| found[1].to_owned()).collect()
}

fn leads_elsewhere(url: &str) -> bool {
    // `data:` is a part of the page itself.
    !url.starts_with("data:") && (url.starts_with("//") || url.contains(':'))
}

async fn file(client: &Client, name: &str) -> String {
    client.get(&format!("/docs/{name}"), 200).await.text
}

#[tokio::test]
async fn the_documentation_is_served_whole() {
    let app = App::start().await;
    let redirect = app.get("/docs", 300..=399).await;
    assert_eq!(redirect.header("location"), Some("/docs/"));
    let index = app.get("/docs/", 200).await;
    assert!(index.header("content-type").unwrap().starts_with("text/html"));
    let fetched = fetched_by_html(&index.text);
    assert!(
        fetched.iter().any(|url| url.ends_with("swagger-ui-bundle.js")),
        "{fetched:?}"
    );
    for url in fetched {
        assert!(!leads_elsewhere(&url), "/docs fetches {url}");
        let asset = app.get(&format!("/docs/{}", url.trim_start_matches("./")), 200).await;
        assert!(!asset.text.is_empty());
    }
    app.finish().await;
}

#[tokio::test]
async fn the_documentation_asks_no_other_host() {
    let app = App::start().await;
    for name in ["swagger-ui.css", "index.css"] {
        for url in fetched_by_css(&file(&app, name).await) {
            assert!(!leads_elsewhere(&url), "{name} fetches {url}");
        }
    }
    // The scripts fetch what they are told to, and of themselves one thing: a picture that says whether
    // the document is valid, from a host that learns the document's address by it.
    let initializer = file(&app, "swagger-initializer.js").await;
    let setting = |name: &str| {
        let setting = Regex::new(&format!(r#""?{name}"?\s*:\s*"([^"]*)""#)).unwrap();
        setting.captures(&initializer).map(|found| found[1].to_owned())
    };
    assert_eq!(setting("url").as_deref(), Some("/openapi.json"), "{initializer}");
    assert_eq!(setting("validatorUrl").as_deref(), Some("none"), "{initializer}");
    assert!(!initializer.contains("://"), "{initializer}");
    let bundle = file(&app, "swagger-ui-bundle.js").await;
    let scripted = Regex::new(r#"(?:fetch|importScripts|import)\(\s*["'`](?:https?:)?//"#).unwrap();
    assert!(
        !scripted.is_match(&bundle),
        "the bundle fetches from a host of its own choice"
    );
    // A page of an error says nothing that would be fetched either.
    let page = app.get("/errors/invalid_key", 200).await.text;
    for url in fetched_by_html(&page).into_iter().chain(fetched_by_css(&page)) {
        assert!(
            !leads_elsewhere(&url) || page.contains(&format!("<a href=\"{url}\"")),
            "{url}"
        );
    }
    app.finish().await;
}

mod tests {
    use super::{fetched_by_css, fetched_by_html, leads_elsewhere};

    #[test]
    fn what_leads_elsewhere_is_seen() {
        let html = r#"<script src="https://cdn.example/x.js"></script><link href=//y.example/y.css><img src='a.png'>"#;
        let urls = fetched_by_html(html);
        assert_eq!(urls, ["https://cdn.example/x.js", "//y.example/y.css", "a.png"]);
        let elsewhere = urls.iter().map(|url| leads_elsewhere(url)).collect::<Vec<_>>();
        assert_eq!(elsewhere, [true, true, false]);
        let css = r#"@import "http://a/b.css"; .x { background: url(http://c/d.png) } .y { mask: url("data:image/png;base64,x") }"#;
        let elsewhere = fetched_by_css(css).into_iter().filter(|url| leads_elsewhere(url));
        assert_eq!(elsewhere.collect::<Vec<_>>(), ["http://a/b.css", "http://c/d.png"]);
    }
}
