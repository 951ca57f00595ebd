package hop

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, b *Body) *Reader {
	t.Helper()
	r, err := b.Open()
	require.NoError(t, err)
	return r
}

func all(t *testing.T, r io.Reader) string {
	t.Helper()
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(got)
}

func TestABodyWithinTheLimitCanBeReadAgain(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 99, 100} {
		text := strings.Repeat("x", size)
		b := NewBody(strings.NewReader(text), 100)
		for range 3 {
			r := open(t, b)
			require.Equal(t, text, all(t, r))
			require.True(t, b.Ended())
			require.True(t, b.Suspend())
			require.NoError(t, r.Close())
		}
		b.Stop()
	}
}

func TestABodyBeyondTheLimitIsSpentOnceThatWasTaken(t *testing.T) {
	t.Parallel()
	b := NewBody(strings.NewReader(strings.Repeat("x", 101)), 100)
	r := open(t, b)
	require.Len(t, all(t, r), 101)
	require.False(t, b.Suspend())
	require.NoError(t, r.Close())
	_, err := b.Open()
	require.Error(t, err)
	b.Stop()
}

func TestReadingAheadKeepsWhatMayBeKeptAndTellsOfTheEnd(t *testing.T) {
	t.Parallel()
	fault := errors.New("planted")
	for name, c := range map[string]struct {
		size  int
		fault error
		want  error // nil: not told
	}{
		"ends within the limit":   {99, io.EOF, io.EOF},
		"breaks within the limit": {99, fault, fault},
		"goes on beyond it":       {100_000, io.EOF, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				text := strings.Repeat("x", c.size)
				b := NewBody(io.MultiReader(iotest.OneByteReader(strings.NewReader(text)), iotest.ErrReader(c.fault)), 100)
				for range 2 { // also when it has ended before
					var told error
					b.ReadAhead(func(err error) { told = err })
					synctest.Wait()
					require.Equal(t, c.want, told)
				}
				require.True(t, b.Started())
				got, err := io.ReadAll(open(t, b))
				require.Equal(t, text, string(got))
				if c.fault != io.EOF {
					require.Equal(t, c.fault, err)
				}
				b.Stop()
			})
		})
	}
}

func TestStoppingEndsReadingAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		b := NewBody(r, 100)
		b.ReadAhead(func(error) { require.Fail(t, "told after Stop") })
		go b.Stop()
		synctest.Wait()
		_, err := w.Write([]byte("x")) // the read that was under way
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, w.Close())
		synctest.Wait()
		require.False(t, b.Ended(), "the source is not read any more")
	})
}

func TestWhatWasReadAndNotTakenIsNotLost(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 50) + strings.Repeat("y", 100_000)
	b := NewBody(io.MultiReader(strings.NewReader(text[:50]), strings.NewReader(text[50:])), 100)
	r := open(t, b)
	got := make([]byte, 50)
	_, err := io.ReadFull(r, got)
	require.NoError(t, err)
	require.True(t, b.Suspend())
	require.NoError(t, r.Close())
	require.Equal(t, text, all(t, open(t, b)))
	b.Stop()
}

// A read of the source that is under way when the first Reader ends belongs to
// the second.
func TestAReadUnderWayIsHandedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source, client := io.Pipe()
		b := NewBody(source, 100)
		first := open(t, b)
		ended := make(chan error)
		go func() {
			_, err := first.Read(make([]byte, 10))
			ended <- err
		}()
		require.False(t, b.Started())
		synctest.Wait()
		require.True(t, b.Started())
		require.True(t, b.Suspend())
		go func() {
			_, _ = client.Write([]byte("word"))
			_ = client.Close()
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("a suspended reader waits")
		default:
		}
		second := open(t, b)
		require.Equal(t, "word", all(t, second))
		require.NoError(t, first.Close())
		require.ErrorIs(t, <-ended, errSuperseded)
		b.Stop()
	})
}

func TestStopWaitsForTheReadUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source, client := io.Pipe()
		b := NewBody(source, 100)
		r := open(t, b)
		go func() { _, _ = r.Read(make([]byte, 1)) }()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			b.Stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Fatal("stopped during a read")
		default:
		}
		_ = client.CloseWithError(io.ErrUnexpectedEOF)
		<-stopped
		require.ErrorIs(t, b.Err(), io.ErrUnexpectedEOF)
	})
}

func TestDrainReadsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	source := strings.NewReader(strings.Repeat("x", 1000))
	b := NewBody(source, 10)
	b.Drain(100)
	require.Equal(t, 900, source.Len())
}

func TestTheEndIsToldBeforeItIsRead(t *testing.T) {
	t.Parallel()
	b := NewBody(strings.NewReader("x"), 10)
	r := open(t, b)
	told := 0
	r.OnEOF(func() { told++ })
	require.Equal(t, "x", all(t, r))
	require.Equal(t, 1, told)
	b.Stop()
}

func TestAFaultOfTheSourceIsNoEnd(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	b := NewBody(io.MultiReader(strings.NewReader("some"), iotest.ErrReader(fault)), 2)
	r := open(t, b)
	r.OnEOF(func() { t.Error("told of an end") })
	got, err := io.ReadAll(r)
	require.Equal(t, "some", string(got))
	require.ErrorIs(t, err, fault)
	b.Stop()
}

// Whatever the sizes, a body that can be sent again comes whole, and one that
// cannot says so.
func TestReadersSeeTheWholeBodyOrNone(t *testing.T) {
	t.Parallel()
	for range 300 {
		text := make([]byte, rand.IntN(3*LargeBuffer))
		for i := range text {
			text[i] = byte(rand.Uint32())
		}
		limit := rand.IntN(2 * LargeBuffer)
		var source io.Reader = bytes.NewReader(text)
		if rand.IntN(2) == 0 {
			source = iotest.HalfReader(source)
		}
		if rand.IntN(2) == 0 {
			source = iotest.DataErrReader(source)
		}
		b := NewBody(source, limit)
		r := open(t, b)
		before := rand.IntN(len(text) + 1)
		_, err := io.CopyN(io.Discard, r, int64(before))
		require.NoError(t, err)
		again := b.Suspend()
		require.True(t, again || before > 0 && len(text) > limit)
		if again {
			require.NoError(t, r.Close())
			r = open(t, b)
			before = 0
		}
		require.True(t, all(t, r) == string(text[before:]))
		b.Stop()
	}
}

// sizes notes how long the pieces are that are asked for.
type sizes struct {
	io.Reader
	asked []int
}

func (s *sizes) Read(p []byte) (int, error) {
	s.asked = append(s.asked, len(p))
	return s.Reader.Read(p)
}

// A reader with a little less room than the body's own buffer got every piece in two,
// the second one of a few bytes.
func TestALongBodyPassesInPiecesOfItsReadersSize(t *testing.T) {
	t.Parallel()
	const limit, room = 100, LargeBuffer - 8
	long := strings.Repeat("long", 100_000)
	src := &sizes{Reader: strings.NewReader(long)}
	b := NewBody(src, limit)
	r, err := b.Open()
	require.NoError(t, err)
	var got strings.Builder
	var small int
	for buf := make([]byte, room); ; {
		n, err := r.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			require.Equal(t, io.EOF, err)
			break
		}
		if n < room {
			small++
		}
	}
	require.Equal(t, long, got.String())
	require.LessOrEqual(t, small, 3, "what was kept, what follows it, and the last one")
	require.Equal(t, room, src.asked[len(src.asked)-1])
	require.Nil(t, b.buf)
	require.True(t, b.Ended())
}

func TestABodyThatComesInOnePieceIsReadOnce(t *testing.T) {
	t.Parallel()
	source := &pieces{Reader: iotest.DataErrReader(strings.NewReader("body"))}
	b := NewBody(source, 4)
	for range 2 {
		text, whole := b.ReadOnce(4)
		require.True(t, whole)
		require.Equal(t, "body", string(text))
	}
	require.Equal(t, 1, source.reads)
	require.Equal(t, io.EOF, b.Err())
	require.Equal(t, "body", all(t, open(t, b))) // to be sent again
}

// pieces counts reads.
type pieces struct {
	io.Reader
	reads int
}

func (p *pieces) Read(b []byte) (int, error) {
	p.reads++
	return p.Reader.Read(b)
}

func TestWhatReadOnceHasNotReadComesAfterwards(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{100, 4, 3, 0} { // 4 is all of it
		b := NewBody(iotest.OneByteReader(strings.NewReader("body")), limit)
		_, whole := b.ReadOnce(4)
		require.False(t, whole)
		require.Equal(t, "body", all(t, open(t, b)))
		require.Equal(t, limit >= 4, b.Suspend())
		b.Stop()
	}
}

func TestASourceThatPanicsHasEnded(t *testing.T) {
	t.Parallel()
	b := NewBody(panics{}, 4)
	require.PanicsWithValue(t, "planted", func() { _, _ = b.ReadOnce(4) })
	require.ErrorIs(t, b.Err(), errPanicked)
	b.Stop() // waits for nothing
}

type panics struct{}

func (panics) Read([]byte) (int, error) { panic("planted") }
