//! Serves the page at `/`.

use clap::Parser;
use simurgh::Endpoint;

/// A small page, rendered for each request.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4000")]
    listen: String,
}

fn main() -> Result<(), simurgh::Error> {
    let args = Args::parse();
    Endpoint::builder().http(hello_page::router()).listen(&args.listen).run()
}
