// A Pion client: one call to a calls URL, Opus up, keeping what comes back.
//
//	pion CALLS_URL SECONDS < PACKETS
//
// PACKETS is a JSON list of Opus packets of 20 ms in base64: what it says first; then it is silent. It prints one
// JSON object: what it connected with, how many packets it sent, the payloads that it got, the events of
// its data channel.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"
)

// How long what was sent may be on its way back.
const patience = 2 * time.Second

// One 20 ms frame of silence (RFC 6716: CELT, fullband), which every decoder takes.
var silence = []byte{0xf8, 0xff, 0xfe}

type result struct {
	State    string   `json:"state"`
	Sent     int64    `json:"sent"`
	Received [][]byte `json:"received"`
	Reports  int64    `json:"reports"`
	Codec    string   `json:"codec"`
	Events   []string `json:"events"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	seconds, err := strconv.Atoi(os.Args[2])
	check(err)
	var packets [][]byte
	check(json.NewDecoder(os.Stdin).Decode(&packets))
	engine := webrtc.SettingEngine{}
	engine.SetIncludeLoopbackCandidate(true)
	api := webrtc.NewAPI(webrtc.WithSettingEngine(engine))
	connection, err := api.NewPeerConnection(webrtc.Configuration{})
	check(err)
	track, err := webrtc.NewTrackLocalStaticSample(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "pion")
	check(err)
	sender, err := connection.AddTrack(track)
	check(err)
	var reports int64
	var lock sync.Mutex
	received := [][]byte{}
	codec := make(chan string, 1)
	go func() {
		for {
			if _, _, err := sender.ReadRTCP(); err != nil {
				return
			}
			atomic.AddInt64(&reports, 1)
		}
	}()
	connection.OnTrack(func(remote *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		codec <- remote.Codec().MimeType
		for {
			packet, _, err := remote.ReadRTP()
			if err != nil {
				return
			}
			lock.Lock()
			received = append(received, packet.Payload)
			lock.Unlock()
		}
	})
	events := make(chan string, 100)
	channel, err := connection.CreateDataChannel("oai-events", nil)
	check(err)
	channel.OnMessage(func(message webrtc.DataChannelMessage) {
		var event struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(message.Data, &event) == nil {
			events <- event.Type
		}
	})
	connected := make(chan struct{})
	var once sync.Once // a busy machine may interrupt it meanwhile
	connection.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateConnected {
			once.Do(func() { close(connected) })
		}
	})
	offer, err := connection.CreateOffer(nil)
	check(err)
	check(connection.SetLocalDescription(offer))
	request, err := http.NewRequest("POST", os.Args[1], bytes.NewBufferString(offer.SDP))
	check(err)
	request.Header.Set("Content-Type", "application/sdp")
	request.Header.Set("Authorization", "Bearer ek_pion")
	response, err := http.DefaultClient.Do(request)
	check(err)
	answer, err := io.ReadAll(response.Body)
	check(err)
	if response.StatusCode != http.StatusCreated {
		check(fmt.Errorf("%d: %s", response.StatusCode, answer))
	}
	check(connection.SetRemoteDescription(
		webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: string(answer)}))
	select {
	case <-connected:
	case <-time.After(20 * time.Second):
		check(fmt.Errorf("not connected: %s", connection.ConnectionState()))
	}
	var sent int64
	ticker := time.NewTicker(20 * time.Millisecond)
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		<-ticker.C
		said := silence
		if sent < int64(len(packets)) {
			said = packets[sent]
		}
		check(track.WriteSample(media.Sample{Data: said, Duration: 20 * time.Millisecond}))
		sent++
	}
	count := func() int64 {
		lock.Lock()
		defer lock.Unlock()
		return int64(len(received))
	}
	for end := time.Now().Add(patience); count() < sent && time.Now().Before(end); {
		<-ticker.C
	}
	lock.Lock()
	found := result{State: connection.ConnectionState().String(), Sent: sent,
		Received: received, Reports: atomic.LoadInt64(&reports), Events: []string{}}
	lock.Unlock()
	select {
	case found.Codec = <-codec:
	default:
	}
	for len(events) > 0 {
		found.Events = append(found.Events, <-events)
	}
	check(connection.Close())
	check(json.NewEncoder(os.Stdout).Encode(found))
}
