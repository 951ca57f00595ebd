package pinboard

import (
	"strconv"

	"github.com/pinboard-go/pinboard/internal/store"
)

// maxEpochBytes bounds what a registration's answer tells of epochs: enough for
// 100,000 ids of 60 bytes, and little enough for a worker to read it in its time,
// beside all duplicates.
const maxEpochBytes = 8 << 20

// epochBytes is what an epoch takes beside its id.
const epochBytes = 24

// toldEpochs is what the answer tells of the epochs of reclaimed ids. What there
// is no room for, the worker hears with the first request for the id.
func toldEpochs(epochs store.Epochs) map[string]map[string]string {
	if len(epochs) == 0 {
		return nil
	}
	told, left := make(map[string]map[string]string, len(epochs)), maxEpochBytes
	for ns, ids := range epochs {
		told[ns] = make(map[string]string, len(ids))
		for id, epoch := range ids {
			if left -= len(id) + epochBytes; left < 0 {
				return told
			}
			told[ns][id] = strconv.FormatInt(epoch, 10)
		}
	}
	return told
}
