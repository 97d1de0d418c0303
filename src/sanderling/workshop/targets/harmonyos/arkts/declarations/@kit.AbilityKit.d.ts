// Written from the public reference of Ability Kit; only what the module uses.
import { resourceManager } from '@kit.LocalizationKit';
import { window } from '@kit.ArkUI';

export class Want { bundleName?: string; abilityName?: string }
export namespace AbilityConstant {
  interface LaunchParam { launchReason: number }
  enum MemoryLevel {
    MEMORY_LEVEL_MODERATE = 0, MEMORY_LEVEL_LOW = 1, MEMORY_LEVEL_CRITICAL = 2, MEMORY_LEVEL_UI_HIDDEN = 3,
    MEMORY_LEVEL_BACKGROUND_MODERATE = 4, MEMORY_LEVEL_BACKGROUND_LOW = 5, MEMORY_LEVEL_BACKGROUND_CRITICAL = 6
  }
}
export namespace common {
  interface Context { resourceManager: resourceManager.ResourceManager; filesDir: string }
  interface UIAbilityContext extends Context { terminateSelf(): Promise<void> }
}
export class UIAbility {
  context: common.UIAbilityContext;
  onCreate(want: Want, launchParam: AbilityConstant.LaunchParam): void;
  onDestroy(): void | Promise<void>;
  onWindowStageCreate(windowStage: window.WindowStage): void;
  onMemoryLevel(level: AbilityConstant.MemoryLevel): void;
}
