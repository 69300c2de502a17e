//! Any operations, on one node and on several with a bad network between them: all tables end with
//! the union of the owners' entries, and clients that apply what they receive have the list.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Step, TestCluster};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(any::<Step>(), 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn single_node_matches_its_model_and_clients_match_the_list(steps in steps()) {
        run(1, &steps);
    }

    #[test]
    fn several_nodes_converge_to_the_union(nodes in 2..=4usize, steps in steps()) {
        run(nodes, &steps);
    }
}

fn run(nodes: usize, steps: &[Step]) {
    let mut world = TestCluster::new(nodes);
    for &step in steps {
        world.step(step);
    }
    world.heal();
    world.check_union();
}
