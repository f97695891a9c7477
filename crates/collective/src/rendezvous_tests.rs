use netsum_identity::{Authority, Identity, Validity};

use super::*;

const SOON: Duration = Duration::from_secs(20);
const TOKEN: Token = [7; TOKEN_LEN];

fn meeting(patience: Duration) -> (Meeting, String) {
    let meeting = Meeting::host("127.0.0.1:0".parse().unwrap(), TOKEN, patience).unwrap();
    let at = meeting.address().to_string();
    (meeting, at)
}

fn come(at: &str, rank: u32, size: u32) -> Result<Vec<Vec<u8>>, String> {
    meet(at, TOKEN, (rank, size), &vec![rank as u8; 10 * rank as usize], SOON)
        .map_err(|e| e.to_string())
}

#[test]
fn all_receive_all_addresses_and_the_port_is_free_again() {
    for _ in 0..3 {
        let (_meeting, at) = meeting(SOON);
        std::thread::scope(|scope| {
            let visits: Vec<_> = (0..5)
                .map(|rank| {
                    scope.spawn({
                        let at = &at;
                        move || come(at, rank, 5)
                    })
                })
                .collect();
            let expected: Vec<Vec<u8>> = (0..5).map(|rank| vec![rank as u8; 10 * rank]).collect();
            for visit in visits {
                assert_eq!(visit.join().unwrap().unwrap(), expected);
            }
        });
        // The host stops listening before it answers.
        TcpListener::bind(&at).unwrap();
    }
}

#[test]
fn a_client_waits_for_its_host() {
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let early = std::thread::spawn(move || come(&at.to_string(), 0, 1));
    std::thread::sleep(Duration::from_millis(100));
    let _meeting = Meeting::host(at, TOKEN, SOON).unwrap();
    assert_eq!(early.join().unwrap().unwrap(), [Vec::<u8>::new()]);
}

#[test]
fn a_missing_rank_is_named() {
    let (_meeting, at) = meeting(Duration::from_secs(2));
    let visits = [0, 2].map(|rank| {
        let at = at.clone();
        std::thread::spawn(move || come(&at, rank, 4).unwrap_err())
    });
    for visit in visits {
        let error = visit.join().unwrap();
        assert!(error.contains("ranks [1, 3] of 4 did not come"), "{error}");
    }
    let short = Duration::from_millis(100);
    let error = meet("127.0.0.1:1", TOKEN, (1, 2), b"", short).unwrap_err().to_string();
    assert!(error.contains("rank 1 did not get everybody's address from 127.0.0.1:1"), "{error}");
}

#[test]
fn duplicate_unknown_and_differently_sized_ranks_are_refused_and_the_rendezvous_continues() {
    let (_meeting, at) = meeting(SOON);
    TcpStream::connect(&at).unwrap().write_all(&[0xff; 100]).unwrap();
    let endless =
        [MAGIC.as_slice(), &TOKEN, &[0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff]].concat();
    TcpStream::connect(&at).unwrap().write_all(&endless).unwrap();
    let (told, answers) = unbounded();
    for _ in 0..2 {
        let (at, told) = (at.clone(), told.clone());
        std::thread::spawn(move || told.send(come(&at, 0, 2)));
    }
    // The second one is refused at once; the first waits.
    let refused = answers.recv_timeout(SOON).unwrap().unwrap_err();
    assert!(refused.contains("two processes say that they are rank 0"), "{refused}");
    let larger = come(&at, 1, 3).unwrap_err();
    assert!(
        larger.contains("rank 1 says that there are 3 ranks; the first to come said 2"),
        "{larger}"
    );
    let other = meet(&at, [8; TOKEN_LEN], (1, 2), b"", SOON).unwrap_err().to_string();
    assert!(other.contains("another token"), "{other}");
    assert_eq!(come(&at, 1, 2), answers.recv_timeout(SOON).unwrap());
}

#[test]
fn a_rank_that_disconnected_may_connect_again() {
    let (_meeting, at) = meeting(SOON);
    let hello = Hello { token: TOKEN, rank: 0, size: 2, address: b"old".to_vec() }.to_bytes();
    let mut old = TcpStream::connect(&at).unwrap();
    old.write_all(&hello).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(old);
    std::thread::sleep(Duration::from_millis(100));
    let again = std::thread::spawn({
        let at = at.clone();
        move || come(&at, 0, 2)
    });
    assert_eq!(come(&at, 1, 2).unwrap()[0], b"");
    assert_eq!(again.join().unwrap().unwrap()[1], [1; 10]);
}

/// Credentials of fabric `lab` in a folder: a tenant's, and a viewer's.
fn credentials(place: &Path) -> [Invitation; 2] {
    let authority = Authority::create(&place.join("ca"), "lab").unwrap();
    ["tenant/research", "viewer"].map(|role| {
        let identity = Identity::new("lab", role.parse().unwrap()).unwrap();
        let folder = place.join(role.replace('/', "-"));
        let lasting = Validity::lasting(Duration::from_secs(3600));
        authority.issue(&identity, lasting).unwrap().save(&folder).unwrap();
        Invitation::new(TOKEN, Some(&folder)).unwrap()
    })
}

#[test]
fn ranks_with_credentials_meet_over_tls_and_nobody_else_does() {
    let place = tempfile::tempdir().unwrap();
    let [worker, viewer] = credentials(place.path());
    let meeting = Meeting::host("127.0.0.1:0".parse().unwrap(), worker.clone(), SOON).unwrap();
    let at = meeting.address().to_string();
    let come = |invitation: Invitation, rank: u32, patience| {
        meet(&at, invitation, (rank, 2), &[rank as u8], patience).map_err(|e| e.to_string())
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| come(worker.clone(), 0, SOON));
        let short = Duration::from_secs(2);
        // A rank with the token in plain text, and one that is no worker.
        come(TOKEN.into(), 1, short).unwrap_err();
        let error = come(viewer, 1, short).unwrap_err();
        assert!(error.contains("see the other side's log"), "{error}");
        assert_eq!(come(worker.clone(), 1, SOON).unwrap(), [[0], [1]]);
        assert_eq!(first.join().unwrap().unwrap(), [[0], [1]]);
    });
}

#[test]
fn a_rank_with_credentials_tells_nobody_without_them_its_token() {
    let place = tempfile::tempdir().unwrap();
    let [worker, _] = credentials(place.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut heard = vec![0; 4096];
        let len = stream.read(&mut heard).unwrap();
        heard.truncate(len);
        heard
    });
    meet(&at, worker, (1, 2), b"secret", Duration::from_secs(1)).unwrap_err();
    let heard = heard.join().unwrap();
    assert!(!heard.windows(TOKEN_LEN).any(|part| part == TOKEN) && !heard.is_empty());
}
