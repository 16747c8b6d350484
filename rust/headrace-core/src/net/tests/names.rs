//! A host name that several nodes of a cluster share.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::cluster::{ClusterMap, Node};
use crate::endpoint::{Address, Endpoint, Form, OptionValue};
use crate::error::code;
use crate::net::cluster_nodes::ask_each;
use crate::net::handshake::Greeting;
use crate::net::peer::Peer;
use crate::net::{ConnectError, Deadline, NeverInterrupted, block_on};
use crate::server_of_tests::{Server, free_port};

/// The number of slots named by a node at one of these addresses, asked within `time`.
fn ask(addresses: &[SocketAddr], time: Duration) -> Result<usize, ConnectError> {
    let options = [("nodes", "cluster.test:6379"), ("stream_key", "s")];
    let options = options.map(|(name, value)| (name.to_owned(), OptionValue::text(value)));
    let endpoint = Endpoint::new(options, Form::Text).unwrap();
    let node = Node { host: "cluster.test".to_owned(), port: 6379 };
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let (access, greeting) = (endpoint.access(), Greeting::Lookup);
    let title = node.to_string();
    let mut peer = Peer { address: &address, dial: None, title, access, greeting, timeout: time };
    let mut watch = NeverInterrupted;
    let mut patience = Deadline::new(Instant::now() + time, &mut watch);
    let mut map = ClusterMap::default();
    block_on(ask_each(&mut map, &mut peer, addresses, &node, &mut patience)).map(|_| map.owned().len())
}

#[test]
fn a_silent_node_leaves_time_for_the_next_address_of_its_name() {
    let bus = free_port().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let Some(server) = Server::start_tcp("--port", &options) else { return };
    let client = server.client().unwrap();
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg(7).exec(&mut { client }).unwrap();
    // The kernel accepts its connections; nothing reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().map(|address| (silent, address)).unwrap();
    let live = SocketAddr::from(([127, 0, 0, 1], server.port.unwrap()));
    assert_eq!(ask(&[silent.1, live], Duration::from_secs(2)), Ok(1));

    let Err(ConnectError::Fault(fault)) = ask(&[silent.1, silent.1], Duration::from_millis(100)) else {
        panic!("a silent node answered")
    };
    assert_eq!(fault.code, code::TIMEOUT);
}

#[test]
fn a_permanent_fault_of_one_address_is_returned() {
    let Some(server) = Server::start_tcp("--port", &[]) else { return };
    let single = SocketAddr::from(([127, 0, 0, 1], server.port.unwrap()));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [single, silent.local_addr().unwrap()];
    let Err(ConnectError::Fault(fault)) = ask(&addresses, Duration::from_millis(200)) else {
        panic!("a server without cluster named slots")
    };
    assert_eq!(fault.code, code::UNSUPPORTED);
}
