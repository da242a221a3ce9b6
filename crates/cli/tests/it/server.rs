//! An HTTP server that writes down what is posted to it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// One request: its headers in lower case, and its body.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Posted {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Server {
    pub(crate) address: String,
    posted: Arc<Mutex<Vec<Posted>>>,
    status: Arc<AtomicU16>,
}

impl Server {
    /// A server that answers 204; with status 0 it never answers.
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    pub(crate) fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (posted, status) = (Arc::default(), Arc::new(AtomicU16::new(204)));
        let server = Self { address, posted: Arc::clone(&posted), status: Arc::clone(&status) };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (posted, status) = (Arc::clone(&posted), Arc::clone(&status));
                std::thread::spawn(move || serve(stream, &posted, &status));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(crate) fn posted(&self) -> Vec<Posted> {
        self.posted.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, posted: &Mutex<Vec<Posted>>, status: &AtomicU16) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8_lossy(&body).into_owned();
        posted.lock().unwrap().push(Posted { path, headers, body });
        match status.load(Ordering::SeqCst) {
            0 => std::thread::park(),
            status => write!(writer, "HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").ok()?,
        }
    }
}
