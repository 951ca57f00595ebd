package main

// floorSize is what a floor has, in bytes.
const floorSize = 16 << 20

// newFloor returns what keeps collections of garbage apart, as long as somebody keeps
// it. The collector begins one when the heap is twice as large as what was alive, 4 MiB
// at least: a node of few connections has a heap that small and fills it many times a
// second. A floor counts as alive, but as nobody touches it, it is no memory: the node
// has up to floorSize more of garbage. There is none where the memory is limited, which
// it would count for.
func newFloor(lookup func(string) (string, bool)) []byte {
	if _, limited := lookup("GOMEMLIMIT"); limited {
		return nil
	}
	return make([]byte, floorSize)
}
