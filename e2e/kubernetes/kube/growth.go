package main

import (
	"context"
	"encoding/json"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const growthInterval = 2 * time.Second

// growVolumes gives claims of our volumes the size they ask for by now. A directory is as large as its disk, so there is
// nothing to do but to say so; in production a driver's resizer does it, and people and operators see the same steps.
func growVolumes(ctx context.Context, client kubernetes.Interface, provisioner string) {
	ticker := time.NewTicker(growthInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, meta.ListOptions{})
		if err != nil {
			klog.Warningf("claims cannot be listed: %v", err)
			continue
		}
		for _, claim := range claims.Items {
			if err := growClaim(ctx, client, provisioner, &claim); err != nil {
				klog.Warningf("%s/%s cannot grow: %v", claim.Namespace, claim.Name, err)
			}
		}
	}
}

// growClaim sets first the volume's size, then the claim's, which is what everybody waits for.
func growClaim(ctx context.Context, client kubernetes.Interface, provisioner string, claim *core.PersistentVolumeClaim) error {
	wanted, have := claim.Spec.Resources.Requests[core.ResourceStorage], claim.Status.Capacity[core.ResourceStorage]
	if claim.Status.Phase != core.ClaimBound || wanted.Cmp(have) <= 0 {
		return nil
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, meta.GetOptions{})
	if err != nil {
		return err
	}
	if volume.Annotations["pv.kubernetes.io/provisioned-by"] != provisioner {
		return nil
	}
	capacity := map[string]any{"capacity": core.ResourceList{core.ResourceStorage: wanted}}
	patch, err := json.Marshal(map[string]any{"spec": capacity})
	if err != nil {
		return err
	}
	if _, err = client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, patch, meta.PatchOptions{}); err != nil {
		return err
	}
	if patch, err = json.Marshal(map[string]any{"status": capacity}); err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(
		ctx, claim.Name, types.MergePatchType, patch, meta.PatchOptions{}, "status")
	return err
}
