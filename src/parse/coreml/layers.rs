//! Which layers of neural networks have weights, and of which shapes: the numbers of their fields.

/// A kind of layer.
pub(super) struct LayerKind {
    /// The number of its field in a `NeuralNetworkLayer`.
    pub number: u64,
    pub weights: &'static [LayerWeight],
}

/// A weight of a layer.
pub(super) struct LayerWeight {
    /// The number of its field, or of the fields that lead to it.
    pub path: &'static [u64],
    pub name: &'static str,
    pub shape: WeightShape,
}

/// The shape of a weight, by other fields of the layer.
#[derive(Debug, Clone, Copy)]
pub(super) enum WeightShape {
    /// As many numbers as there are.
    Vector,
    /// Dimensions, each of which is a number of the layer.
    Numbers(&'static [u64]),
    /// Dimensions that are the numbers of one field.
    List(u64),
    /// Those of a convolution in two dimensions, or in three.
    Convolution,
    Convolution3d,
}

use WeightShape::{Convolution, Convolution3d, List, Numbers, Vector};

const fn weight(path: &'static [u64], name: &'static str, shape: WeightShape) -> LayerWeight {
    LayerWeight { path, name, shape }
}

/// Sizes of the input and of the output are fields 1 and 2.
const FROM_INPUT: WeightShape = Numbers(&[2, 1]);
const OUTPUT: WeightShape = Numbers(&[2]);
const FROM_OUTPUT: WeightShape = Numbers(&[2, 2]);

const BATCH_NORM: &[LayerWeight] = &[
    weight(&[15], "gamma", Numbers(&[1])),
    weight(&[16], "beta", Numbers(&[1])),
    weight(&[17], "mean", Numbers(&[1])),
    weight(&[18], "variance", Numbers(&[1])),
];

const GRU: &[LayerWeight] = &[
    weight(&[30], "updateGateWeightMatrix", FROM_INPUT),
    weight(&[31], "resetGateWeightMatrix", FROM_INPUT),
    weight(&[32], "outputGateWeightMatrix", FROM_INPUT),
    weight(&[50], "updateGateRecursionMatrix", FROM_OUTPUT),
    weight(&[51], "resetGateRecursionMatrix", FROM_OUTPUT),
    weight(&[52], "outputGateRecursionMatrix", FROM_OUTPUT),
    weight(&[70], "updateGateBiasVector", OUTPUT),
    weight(&[71], "resetGateBiasVector", OUTPUT),
    weight(&[72], "outputGateBiasVector", OUTPUT),
];

/// Of layers in two directions, the message with the weights comes twice.
const LSTM: &[LayerWeight] = &[
    weight(&[20, 1], "inputGateWeightMatrix", FROM_INPUT),
    weight(&[20, 2], "forgetGateWeightMatrix", FROM_INPUT),
    weight(&[20, 3], "blockInputWeightMatrix", FROM_INPUT),
    weight(&[20, 4], "outputGateWeightMatrix", FROM_INPUT),
    weight(&[20, 20], "inputGateRecursionMatrix", FROM_OUTPUT),
    weight(&[20, 21], "forgetGateRecursionMatrix", FROM_OUTPUT),
    weight(&[20, 22], "blockInputRecursionMatrix", FROM_OUTPUT),
    weight(&[20, 23], "outputGateRecursionMatrix", FROM_OUTPUT),
    weight(&[20, 40], "inputGateBiasVector", OUTPUT),
    weight(&[20, 41], "forgetGateBiasVector", OUTPUT),
    weight(&[20, 42], "blockInputBiasVector", OUTPUT),
    weight(&[20, 43], "outputGateBiasVector", OUTPUT),
    weight(&[20, 60], "inputGatePeepholeVector", OUTPUT),
    weight(&[20, 61], "forgetGatePeepholeVector", OUTPUT),
    weight(&[20, 62], "outputGatePeepholeVector", OUTPUT),
];

/// A matrix whose rows are outputs, and a bias.
const LINEAR: &[LayerWeight] =
    &[weight(&[20], "weights", FROM_INPUT), weight(&[21], "bias", OUTPUT)];

/// Kinds of layers by `NeuralNetwork.proto`.
pub(super) const KINDS: &[LayerKind] = &[
    LayerKind {
        number: 100,
        weights: &[weight(&[90], "weights", Convolution), weight(&[91], "bias", Numbers(&[1]))],
    },
    LayerKind {
        number: 130,
        weights: &[
            weight(&[25, 1], "alpha", Vector),
            weight(&[71, 1], "alpha", Vector),
            weight(&[71, 2], "beta", Vector),
        ],
    },
    LayerKind { number: 140, weights: LINEAR },
    LayerKind { number: 150, weights: LINEAR },
    LayerKind { number: 160, weights: BATCH_NORM },
    LayerKind {
        number: 245,
        weights: &[weight(&[2], "scale", List(1)), weight(&[5], "bias", List(4))],
    },
    LayerKind { number: 250, weights: &[weight(&[2], "bias", List(1))] },
    LayerKind { number: 290, weights: &[weight(&[2], "data", List(1))] },
    LayerKind {
        number: 400,
        weights: &[
            weight(&[30], "weightMatrix", FROM_INPUT),
            weight(&[31], "recursionMatrix", FROM_OUTPUT),
            weight(&[32], "biasVector", OUTPUT),
        ],
    },
    LayerKind { number: 410, weights: GRU },
    LayerKind { number: 420, weights: LSTM },
    LayerKind { number: 430, weights: LSTM },
    LayerKind { number: 500, weights: &[weight(&[20], "weights", Vector)] },
    LayerKind { number: 1040, weights: LINEAR },
    LayerKind {
        number: 1045,
        weights: &[weight(&[8], "weights", Numbers(&[6, 5])), weight(&[9], "bias", Numbers(&[6]))],
    },
    LayerKind { number: 1070, weights: &[weight(&[2], "data", List(1))] },
    LayerKind {
        number: 1350,
        weights: &[weight(&[3], "gamma", List(1)), weight(&[4], "beta", List(1))],
    },
    LayerKind {
        number: 1471,
        weights: &[weight(&[60], "weights", Convolution3d), weight(&[61], "bias", Numbers(&[1]))],
    },
];

/// Layers with networks of their own, and the fields of these.
pub(super) const NESTED: &[(u64, &[(u64, &str)])] = &[
    (605, &[(1, "ifBranch"), (2, "elseBranch")]),
    (615, &[(3, "conditionNetwork"), (4, "bodyNetwork")]),
];
