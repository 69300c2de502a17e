//! Serves rooms whose posts are kept in files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use posts::{Db, user_socket};
use simurgh::Endpoint;

/// Rooms for clients of Phoenix Channels, at `/socket`; join `room:lobby`.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4000")]
    listen: String,
    /// Folder of the posts.
    #[arg(long, value_name = "DIR", default_value = "posts")]
    folder: PathBuf,
    /// Rooms that there are, beside those in the folder.
    #[arg(long, value_name = "NAME", default_value = "lobby")]
    room: Vec<String>,
}

fn main() -> ExitCode {
    let Args { listen, folder, room } = Args::parse();
    let db = match Db::open(&folder, room) {
        Ok(db) => db,
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    };
    let server = Endpoint::builder().socket(user_socket(db)).listen(&listen);
    let server = server.on_ready(|it| println!("listening on {:?}", it.addresses()));
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
