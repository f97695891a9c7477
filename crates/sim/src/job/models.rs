//! Training models: compute time and gradient size of a step.

/// A model on one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Name, as in configurations.
    pub name: &'static str,
    /// Images per second of one P100 (TensorFlow's benchmark page, May 2017: DGX-1, one GPU, synthetic data).
    pub images_per_s: f64,
    /// Images per step there.
    pub batch: u32,
    /// Gradients as 32-bit floats.
    pub gradient_bytes: u64,
}

impl Model {
    /// Seconds of computing per step.
    pub fn compute_s(&self) -> f64 {
        f64::from(self.batch) / self.images_per_s
    }

    /// The model of a name.
    pub fn named(name: &str) -> Option<Model> {
        MODELS.into_iter().find(|m| m.name == name)
    }
}

/// The models of PANAMA's study. GoogLeNet is not on that page: its step is estimated from its share of InceptionV3's
/// operations (1.5 of 5.7 GFLOP per image) at the same speed.
pub const MODELS: [Model; 6] = [
    Model { name: "vgg16", images_per_s: 154.0, batch: 64, gradient_bytes: 553_000_000 },
    Model { name: "alexnet", images_per_s: 2987.0, batch: 512, gradient_bytes: 244_403_360 },
    Model { name: "resnet152", images_per_s: 91.8, batch: 64, gradient_bytes: 241_000_000 },
    Model { name: "resnet50", images_per_s: 219.0, batch: 64, gradient_bytes: 102_000_000 },
    Model { name: "inceptionv3", images_per_s: 142.0, batch: 64, gradient_bytes: 95_000_000 },
    Model { name: "googlenet", images_per_s: 540.0, batch: 64, gradient_bytes: 26_499_616 },
];
