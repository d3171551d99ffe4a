// SPDX-License-Identifier: Apache-2.0

package attack

// Labels of the reference worker's containers, as the engine shows them. The worker lists what carries
// its own id.
const (
	LabelWorker     = "hallmark.worker"
	LabelSandbox    = "hallmark.sandbox"
	LabelGeneration = "hallmark.generation"
)
